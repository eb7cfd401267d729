package envoy

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/lab/front"
)

// blockSize is the number of tokens in a block of a stub.
const blockSize = 16

// received is a request as a worker got it.
type received struct {
	body   string
	length int64 // as the header says; -1 without the header
	header http.Header
}

// worker is a stub behind a recorder of its requests.
type worker struct {
	url string

	mu   sync.Mutex
	got  []received
	left int
	// whole has answers come with their length and not in chunks.
	whole bool
	// status is answered in place of the stub when it is not 0. reset ends the connection.
	status int
	reset  bool
}

// newWorker starts a worker until the end of the test.
func newWorker(t *testing.T) *worker {
	t.Helper()
	in, end := io.Pipe()
	lines, out := io.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- front.Serve(ctx, in, out) }()
	var ready front.Ready
	if err := json.NewDecoder(lines).Decode(&ready); err != nil {
		t.Fatal(err)
	}
	w := &worker{}
	stub := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: ready.HTTP})
	stub.FlushInterval = -1
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	stub.Transport = transport
	stub.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.serve(stub, rw, r) }))
	w.url = server.URL
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		transport.CloseIdleConnections()
		_ = end.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
		stop()
	})
	return w
}

// serve records a completion and passes every request on.
func (w *worker) serve(stub http.Handler, rw http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1/completions" {
		stub.ServeHTTP(rw, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has left
	}
	w.mu.Lock()
	w.got = append(w.got, received{string(body), r.ContentLength, r.Header.Clone()})
	status, reset, whole := w.status, w.reset, w.whole
	w.mu.Unlock()
	switch {
	case reset:
		panic(http.ErrAbortHandler)
	case status != 0:
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, `{"error":{"message":"busy","type":"server_error","code":1}}`)
		return
	}
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	defer func() {
		if r.Context().Err() != nil {
			w.mu.Lock()
			w.left++
			w.mu.Unlock()
		}
	}()
	if !whole {
		stub.ServeHTTP(rw, r)
		return
	}
	kept := httptest.NewRecorder()
	stub.ServeHTTP(kept, r)
	maps.Copy(rw.Header(), kept.Result().Header)
	rw.Header().Set("Content-Length", strconv.Itoa(kept.Body.Len()))
	_, _ = rw.Write(kept.Body.Bytes())
}

// keepWhole has answers come with their length.
func (w *worker) keepWhole() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.whole = true
}

// fail has the worker answer completions with a status, or reset their connections.
func (w *worker) fail(status int, reset bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status, w.reset = status, reset
}

// requests returns the completions that came.
func (w *worker) requests() []received {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.got)
}

// abandoned returns how many completions were ended by their client.
func (w *worker) abandoned() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left
}

// compute has the worker compute a prompt that no router has sent.
func (w *worker) compute(t *testing.T, tokens []int) {
	t.Helper()
	resp, err := http.Post(w.url+"/v1/completions", "application/json", strings.NewReader(completion(tokens)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v", resp.StatusCode, err)
	}
}
