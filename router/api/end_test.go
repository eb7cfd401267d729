package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// goneWriter is the writer of a client that has gone, which is seen when what is written
// leaves the buffer.
type goneWriter struct{ *httptest.ResponseRecorder }

func (goneWriter) FlushError() error { return errors.New("connection reset by peer") }

// A booking whose reply cannot be sent is taken back; with one that can be it stays,
// though its caller closes the connection as soon as it has read it.
func TestUndeliveredReplyTakesTheBookingBack(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		request := func(id string) *http.Request {
			r := httptest.NewRequestWithContext(b.T.Context(), "POST", "/v1/route", strings.NewReader(routertest.NewBody("", 1)))
			r.Header.Set(RequestIDHeader, id)
			return r
		}
		h.ServeHTTP(goneWriter{httptest.NewRecorder()}, request("gone"))
		if n := b.Router.Stats().Requests.Load.Requests; n != 0 {
			t.Errorf("%d requests are booked for a client that has gone", n)
		}
		there := httptest.NewRecorder()
		h.ServeHTTP(there, request("there"))
		if n := b.Router.Stats().Requests.Load.Requests; n != 1 || !there.Flushed || there.Result().ContentLength != int64(there.Body.Len()) {
			t.Errorf("%d requests are booked for a client that is there; sent %t, %v", n, there.Flushed, there.Result().Header)
		}
	})
}

// A reply that turns out to be undelivered when its caller has asked again under the same
// id leaves the booking of the retry alone.
func TestUndeliveredReplyLeavesTheRetryAlone(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		late := &heldWriter{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
		done := make(chan struct{})
		go func() {
			defer close(done)
			request := httptest.NewRequestWithContext(b.T.Context(), "POST", "/v1/route", strings.NewReader(routertest.NewBody("", 1)))
			request.Header.Set(RequestIDHeader, "r")
			h.ServeHTTP(struct {
				http.ResponseWriter
				http.Flusher
				flushErrorer
			}{late, nil, flushErrorer{}}, request)
		}()
		<-late.decided
		b.Route(h, "r", `{"method":"mark_free"}`)
		if r, got := b.Route(h, "r", routertest.NewBody("", 1)); r.StatusCode != http.StatusOK {
			t.Errorf("the retry: %d %s", r.StatusCode, got)
		}
		close(late.gone)
		<-done
		if n := b.Router.Stats().Requests.Load.Requests; n != 1 {
			t.Errorf("%d requests are booked after the first reply was not delivered", n)
		}
	})
}

// flushErrorer is the part of a writer by which it is seen that its client has gone.
type flushErrorer struct{}

func (flushErrorer) FlushError() error { return errors.New("connection reset by peer") }

// heldWriter holds an answer back until its client is gone.
type heldWriter struct {
	http.ResponseWriter
	decided, gone chan struct{}
}

func (h *heldWriter) WriteHeader(code int) {
	close(h.decided)
	<-h.gone
	h.ResponseWriter.WriteHeader(code)
}

func (h *heldWriter) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// A request that waits for a worker when the router stops is told so, instead of losing
// its connection.
func TestStopAnswersWhatWaits(t *testing.T) {
	few := 1e-6
	r := newNATSRouterWith(t, sourcetest.StartServer(t).ClientURL(), 7,
		router.Options{Config: routertest.Configured(func(c *config.Config) { c.RouterQueueThreshold = &few })}, drainTimeout).router
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	a := New(r, Options{})
	go func() { served <- a.serve(ctx, listener, a.Handler(), 10*time.Millisecond) }()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	post := func() (int, string, error) {
		answer, err := client.Post("http://"+listener.Addr().String()+"/v1/route", "application/json", strings.NewReader(routertest.NewBody("", 1, 2, 3)))
		if err != nil {
			return 0, "", err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return answer.StatusCode, string(bytes.TrimSpace(body)), err
	}
	if code, got, err := post(); code != http.StatusOK || err != nil {
		t.Fatalf("the first: %d %s, %v", code, got, err)
	}
	waiting := make(chan string, 1)
	go func() {
		code, got, err := post()
		waiting <- fmt.Sprint(code, " ", got, " ", err)
	}()
	sourcetest.Eventually(t, "a request that waits", func() bool { return r.Stats().Requests.Queue.Pending == 1 })
	cancel()
	if got := <-waiting; !strings.HasPrefix(got, "503 ") || !strings.Contains(got, errStopping.Error()) {
		t.Errorf("what waited was answered %s", got)
	}
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
}
