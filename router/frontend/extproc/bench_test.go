package extproc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/frontend/extproc"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/frontend/tokens"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/workers"
)

const blockSize = 4

// directory is a directory of fixed workers that serve model "m".
type directory struct {
	workers []*workers.Worker

	mu       sync.Mutex
	ended    []workers.Outcome
	reported []bool
}

func (d *directory) Resolve(model string) (workers.Served, error) {
	if model != "m" {
		return workers.Served{}, fmt.Errorf("%w: workers serve [m]", workers.ErrUnknownModel)
	}
	return workers.Served{Model: "m"}, nil
}

func (d *directory) Worker(id kv.WorkerID) (*workers.Worker, bool) {
	at := slices.IndexFunc(d.workers, func(w *workers.Worker) bool { return w.ID == id })
	if at < 0 {
		return nil, false
	}
	return d.workers[at], true
}

func (d *directory) Workers() []*workers.Worker                 { return d.workers }
func (d *directory) Models() []workers.Model                    { return []workers.Model{{Name: "m"}} }
func (d *directory) AllowedFor(string) map[kv.WorkerID]struct{} { return nil }
func (d *directory) PrefillFor(string) map[kv.WorkerID]struct{} { return nil }
func (d *directory) Begin(kv.WorkerID)                          {}

func (d *directory) NoteCachedTokens(_ kv.WorkerID, reported bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reported = append(d.reported, reported)
}

func (d *directory) Done(_ kv.WorkerID, o workers.Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = append(d.ended, o)
}

func (d *directory) outcomes() []workers.Outcome {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.ended)
}

// prompts knows the tokens of prompts that have them.
type prompts struct{}

func (prompts) Tokens(_ context.Context, _ string, r *openai.Request) (tokens.Prompt, error) {
	return tokens.Prompt{Tokens: r.Tokens, Exact: r.Tokens != nil}, nil
}

// bench is an ext_proc server and a door on one real router.
type bench struct {
	t         *testing.T
	router    *router.Router
	directory *directory
	door      *frontend.Door
	conn      *grpc.ClientConn
}

// newBench has n workers; worker i is at 10.0.0.i:8000.
func newBench(t *testing.T, n int, ro router.Options, o frontend.Options, with ...func(*extproc.Options)) *bench {
	t.Helper()
	reg, err := registry.New(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reg.Close() })
	b := &bench{t: t, router: routertest.RunOn(t, ro, reg), directory: &directory{}}
	for i := 1; i <= n; i++ {
		url := "http://" + endpoint(i)
		g := registry.Registration{WorkerID: uint64(i), Model: "m", BlockSize: blockSize, Endpoint: url}
		if err := reg.Register(&g, time.Hour); err != nil {
			t.Fatal(err)
		}
		reg.Announce(uint64(i))
		b.directory.workers = append(b.directory.workers, &workers.Worker{
			ID: kv.WorkerID(i), URL: url, Ranks: 1, State: workers.Ready, Facts: workers.Facts{BlockSize: blockSize},
		})
	}
	for len(b.router.Workers()) < n {
		runtime.Gosched()
	}
	o.Router, o.Workers, o.Tokens = b.router, b.directory, prompts{}
	if b.door, err = frontend.New(o); err != nil {
		t.Fatal(err)
	}
	b.serve(with)
	return b
}

func (b *bench) serve(with []func(*extproc.Options)) {
	b.t.Helper()
	o := extproc.Options{Door: b.door, Workers: b.directory}
	for _, change := range with {
		change(&o)
	}
	server, err := extproc.New(o)
	if err != nil {
		b.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	b.conn, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = b.conn.Close()
		stop()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
	})
}

func endpoint(worker int) string { return fmt.Sprintf("10.0.0.%d:8000", worker) }

// booked returns how many requests are booked.
func (b *bench) booked() int { return int(b.router.Stats().Requests.Load.Requests) }

// expectIdle checks that no request stays booked.
func (b *bench) expectIdle() {
	b.t.Helper()
	waittest.Pass(b.t, func() string {
		if n := b.booked(); n > 0 {
			return fmt.Sprintf("%d requests are still booked", n)
		}
		return ""
	})
}

// expectOutcome checks what the requests said of their workers.
func (b *bench) expectOutcome(want ...workers.Outcome) {
	b.t.Helper()
	waittest.Pass(b.t, func() string {
		if got := b.directory.outcomes(); len(got) < len(want) {
			return fmt.Sprintf("outcomes %v, want %v", got, want)
		}
		return ""
	})
	if got := b.directory.outcomes(); !slices.Equal(got, want) {
		b.t.Errorf("outcomes %v, want %v", got, want)
	}
}

// gateway plays Envoy in one stream.
type gateway struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[extprocv3.ProcessingRequest, extprocv3.ProcessingResponse]
	cancel context.CancelFunc
	modes  *extprocv3.ProtocolConfiguration
}

var (
	duplex   = &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED}
	buffered = &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_BUFFERED, ResponseBodyMode: filterv3.ProcessingMode_STREAMED}
)

func (b *bench) gateway(modes *extprocv3.ProtocolConfiguration) *gateway {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	b.t.Cleanup(cancel)
	stream, err := extprocv3.NewExternalProcessorClient(b.conn).Process(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	return &gateway{t: b.t, stream: stream, cancel: cancel, modes: modes}
}

func (g *gateway) send(m *extprocv3.ProcessingRequest) {
	g.t.Helper()
	if err := g.stream.Send(m); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) recv() *extprocv3.ProcessingResponse {
	g.t.Helper()
	m, err := g.stream.Recv()
	if err != nil {
		g.t.Fatal(err)
	}
	return m
}

// headerMap makes headers of pairs.
func headerMap(pairs ...string) *extprocv3.HttpHeaders {
	m := &corev3.HeaderMap{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return &extprocv3.HttpHeaders{Headers: m}
}

// begin sends the headers of POST /v1/completions.
func (g *gateway) begin(meta *corev3.Metadata, more ...string) {
	g.t.Helper()
	h := headerMap(append([]string{":method", "POST", ":path", "/v1/completions", ":authority", "front",
		"content-type", "application/json", "authorization", "Bearer client"}, more...)...)
	g.send(&extprocv3.ProcessingRequest{ProtocolConfig: g.modes, MetadataContext: meta,
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: h}})
}

func (g *gateway) body(part string, last bool) {
	g.t.Helper()
	g.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(part), EndOfStream: last}}})
}

// request sends a whole request and returns the decision's headers, the reply with it, and
// the body for the worker; nil headers for an immediate answer.
func (g *gateway) request(body string, meta *corev3.Metadata, more ...string) (map[string]string, *extprocv3.ProcessingResponse, string) {
	g.t.Helper()
	g.begin(meta, more...)
	if g.modes == buffered {
		if r := g.recv(); r.GetRequestHeaders() == nil {
			g.t.Fatalf("got %v, want a reply to the headers", r)
		}
		g.body(body, true)
		r := g.recv()
		if r.GetImmediateResponse() != nil {
			return nil, r, ""
		}
		common := r.GetRequestBody().GetResponse()
		if changed := common.GetBodyMutation(); changed != nil {
			body = string(changed.GetBody())
		}
		return setHeaders(common.GetHeaderMutation()), r, body
	}
	half := len(body) / 2
	g.body(body[:half], false)
	g.body(body[half:], true)
	r := g.recv()
	if r.GetImmediateResponse() != nil {
		return nil, r, ""
	}
	var got strings.Builder
	for last := false; !last; {
		piece := g.recv().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if piece == nil {
			g.t.Fatal("a reply is no part of the body")
		}
		got.Write(piece.GetBody())
		last = piece.GetEndOfStream()
	}
	return setHeaders(r.GetRequestHeaders().GetResponse().GetHeaderMutation()), r, got.String()
}

func setHeaders(m *extprocv3.HeaderMutation) map[string]string {
	h := make(map[string]string)
	for _, s := range m.GetSetHeaders() {
		h[s.GetHeader().GetKey()] = string(s.GetHeader().GetRawValue())
	}
	return h
}

// answer begins the worker's answer and returns the headers that the client gets besides.
func (g *gateway) answer(status, kind string, meta *corev3.Metadata) map[string]string {
	g.t.Helper()
	g.send(&extprocv3.ProcessingRequest{MetadataContext: meta, Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: headerMap(":status", status, "content-type", kind)}})
	r := g.recv().GetResponseHeaders()
	if r == nil {
		g.t.Fatal("no reply to the headers of the answer")
	}
	return setHeaders(r.GetResponse().GetHeaderMutation())
}

// part sends a part of the answer.
func (g *gateway) part(part string, last bool) {
	g.t.Helper()
	g.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte(part), EndOfStream: last}}})
}

// parts sends the rest of an answer and returns what the client gets.
func (g *gateway) parts(parts ...string) string {
	g.t.Helper()
	var got strings.Builder
	for i, p := range parts {
		g.part(p, i == len(parts)-1)
		if g.modes == duplex {
			continue
		}
		switch m := g.recv().GetResponseBody().GetResponse().GetBodyMutation(); {
		case m == nil:
			got.WriteString(p)
		default:
			got.Write(m.GetBody())
		}
	}
	for last := g.modes != duplex; !last; {
		piece := g.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if piece == nil {
			g.t.Fatal("a reply is no part of the body")
		}
		got.Write(piece.GetBody())
		last = piece.GetEndOfStream()
	}
	if err := g.stream.CloseSend(); err != nil {
		g.t.Fatal(err)
	}
	if m, err := g.stream.Recv(); !errors.Is(err, io.EOF) {
		g.t.Errorf("after the answer came %v, %v", m, err)
	}
	return got.String()
}

// errorOf returns status and code of an immediate answer in OpenAI's shape.
func errorOf(t *testing.T, r *extprocv3.ProcessingResponse) (int, string) {
	t.Helper()
	i := r.GetImmediateResponse()
	if i == nil {
		t.Fatalf("got %v, want an immediate answer", r)
	}
	var e struct {
		Error struct {
			Message string
			Code    any
		}
	}
	if err := json.Unmarshal(i.GetBody(), &e); err != nil || e.Error.Message == "" {
		t.Fatalf("%q is not an error of OpenAI's shape: %v", i.GetBody(), err)
	}
	return int(i.GetStatus().GetCode()), fmt.Sprint(e.Error.Code)
}
