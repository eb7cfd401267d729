package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/workload"
)

// fakeCluster is a router and one engine in this process, and a log of what they
// were asked.
type fakeCluster struct {
	router, engine *httptest.Server

	mu      sync.Mutex
	calls   []string
	prompts map[string][]uint32
	// refuse makes the engine refuse requests with this id.
	refuse string
	// miscount is added to the device tokens that the engine claims.
	miscount uint64
	// resetsRefused is how many resets the engine still refuses.
	resetsRefused int
}

func reply(w http.ResponseWriter, v any) { json.NewEncoder(w).Encode(v) }

func (f *fakeCluster) log(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func newFakeCluster(t *testing.T) *fakeCluster {
	f := &fakeCluster{prompts: make(map[string][]uint32)}
	f.router = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Method string }
		json.NewDecoder(r.Body).Decode(&body)
		f.log("%s %s", body.Method, r.Header.Get("X-Request-Id"))
		reply(w, map[string]any{"worker_id": 7, "success": true})
	}))
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/generate", f.generate)
	mux.HandleFunc("POST /v1/reset_prefix_cache", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.resetsRefused--
		reply(w, map[string]bool{"success": f.resetsRefused < 0})
	})
	f.engine = httptest.NewServer(mux)
	t.Cleanup(f.router.Close)
	t.Cleanup(f.engine.Close)
	return f
}

func (f *fakeCluster) generate(w http.ResponseWriter, r *http.Request) {
	var body struct {
		RequestID string   `json:"request_id"`
		Tokens    []uint32 `json:"tokens"`
		Output    int      `json:"output_tokens"`
	}
	json.NewDecoder(r.Body).Decode(&body)
	f.log("generate %s", body.RequestID)
	f.mu.Lock()
	f.prompts[body.RequestID] = body.Tokens
	f.mu.Unlock()
	if body.RequestID == f.refuse {
		reply(w, map[string]any{"event": "error", "message": "no room"})
		return
	}
	reply(w, map[string]any{"event": "first_token", "served": Served{Device: uint64(len(body.Tokens)) + f.miscount}})
	reply(w, map[string]any{"event": "done", "output": slices.Repeat([]uint32{9}, body.Output)})
}

func (f *fakeCluster) player(t *testing.T, total int) *player {
	client := cluster.NewClient(8)
	t.Cleanup(client.Close)
	calls := &caller{limitsFor(&Options{PrefillRate: 1, SpeedUp: 1}, nil)}
	e := &cluster.Engine{Endpoint: client.At("engine-7", strings.TrimPrefix(f.engine.URL, "http://")), EngineOptions: cluster.EngineOptions{Worker: 7}}
	return &player{
		calls: calls, router: client.At("router", strings.TrimPrefix(f.router.URL, "http://")), speedUp: 1, concurrency: 8, rec: &recorder{total: total},
		engines: map[uint64]*engine{7: {Engine: e}},
	}
}

// ofRequest returns the calls that name request id, in order.
func (f *fakeCluster) ofRequest(id string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var methods []string
	for _, c := range f.calls {
		if method, ok := strings.CutSuffix(c, " "+id); ok {
			methods = append(methods, method)
		}
	}
	return strings.Join(methods, " ")
}

func conversation() []workload.Request {
	return []workload.Request{
		{ID: "a0", Session: 1, Pieces: []workload.Piece{{Stream: 1, Tokens: 5}}, OutputTokens: 2},
		{ID: "b0", Session: 2, Pieces: []workload.Piece{{Stream: 2, Tokens: 4}}, OutputTokens: 1},
		{ID: "a1", Session: 1, Turn: 1, Think: time.Millisecond, Pieces: []workload.Piece{{Stream: 3, Tokens: 3}}, OutputTokens: 1},
	}
}

func TestEachRequestIsRoutedServedMarkedAndFreed(t *testing.T) {
	f := newFakeCluster(t)
	p := f.player(t, 3)
	if err := p.play(t.Context(), conversation()); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a0", "b0", "a1"} {
		if got := f.ofRequest(id); got != "new generate mark_prefill mark_free" {
			t.Errorf("calls of %s: %s", id, got)
		}
	}
	var r RunReport
	p.rec.fillReport(&r)
	if r.Requests != 3 || r.Failed != 0 || r.InputTokens != 5+4+10 || r.Served.Device != 19 || r.ByEngine[7] != 3 {
		t.Errorf("report %+v", r)
	}
	if want := workload.InputTokens(conversation()); r.InputTokens != want {
		t.Errorf("%d input tokens were sent, the workload has %d", r.InputTokens, want)
	}
}

// The tokens sent are not those that the engine says it served: a wrong count
// must show.
func TestMiscountingEngineIsFoundOut(t *testing.T) {
	f := newFakeCluster(t)
	f.miscount = 2
	p := f.player(t, 3)
	if err := p.play(t.Context(), conversation()); err != nil {
		t.Fatal(err)
	}
	r := RunReport{}
	p.rec.fillReport(&r)
	if r.InputTokens != 19 || r.Served.Device != 25 || r.misserved != 3 {
		t.Errorf("report %+v", r)
	}
	j := judge{name: "ours"}
	j.requests(&r)
	if len(j.reasons) != 1+3 || j.reasons[0] != "ours: served tokens add up to 25, the prompts that were sent to 19; 3 requests differ" ||
		!strings.Contains(strings.Join(j.reasons, "\n"), "request b0: engine-7: served {Device:6 Host:0 Disk:0 Recomputed:0} adds up to 6, the prompt has 4 tokens") {
		t.Errorf("reasons %q", j.reasons)
	}
}

// No process can make the demo wait for ever: each answer has a limit, and who
// does not keep it is named.
func TestSilentProcessFailsItsRequestsAndIsNamed(t *testing.T) {
	f := newFakeCluster(t)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // or the end of the call is not noticed
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	for _, c := range []struct {
		silence func(*player)
		want    string
	}{
		{func(p *player) { p.engines[7].URL, p.calls.limits.generate = silent.URL, 50*time.Millisecond }, "request a0: engine-7: POST /v1/generate: no answer within 50ms"},
		{func(p *player) { p.router.URL, p.calls.limits.call = silent.URL, 40*time.Millisecond }, "request a0: router: POST /v1/route: no answer within 40ms"},
	} {
		p := f.player(t, 1)
		c.silence(p)
		if err := p.play(t.Context(), conversation()[:1]); err != nil {
			t.Fatal(err)
		}
		var r RunReport
		p.rec.fillReport(&r)
		if r.Failed != 1 || !slices.Equal(r.firstErrors, []string{c.want}) {
			t.Errorf("%d failed, %q; want 1, %q", r.Failed, r.firstErrors, c.want)
		}
	}
}

func TestLaterTurnCarriesPromptAndAnswerOfTheOneBefore(t *testing.T) {
	f := newFakeCluster(t)
	if err := f.player(t, 3).play(t.Context(), conversation()); err != nil {
		t.Fatal(err)
	}
	first := workload.Piece{Stream: 1, Tokens: 5}.AppendTokens(nil)
	want := workload.Piece{Stream: 3, Tokens: 3}.AppendTokens(append(first, 9, 9))
	if got := f.prompts["a1"]; !slices.Equal(got, want) {
		t.Errorf("prompt %v, want %v", got, want)
	}
	if i, j := slices.Index(f.calls, "mark_free a0"), slices.Index(f.calls, "new a1"); i > j {
		t.Errorf("turn 1 began before turn 0 had ended: %q", f.calls)
	}
}

func TestFailedRequestIsFreedAndCounted(t *testing.T) {
	f := newFakeCluster(t)
	f.refuse = "a0"
	p := f.player(t, 3)
	if err := p.play(t.Context(), conversation()); err != nil {
		t.Fatal(err)
	}
	if got := f.ofRequest("a0"); got != "new generate mark_free" {
		t.Errorf("calls of a0: %s", got)
	}
	var r RunReport
	p.rec.fillReport(&r)
	if r.Requests != 3 || r.Failed != 1 || !slices.Equal(r.firstErrors, []string{"request a0: engine-7: POST /v1/generate: no room"}) {
		t.Errorf("report %+v", r)
	}
}

func TestResetIsRetriedAndHoldsRequestsBackMeanwhile(t *testing.T) {
	f := newFakeCluster(t)
	f.resetsRefused = 3
	p := f.player(t, 3)
	e := p.engines[7]
	called := 0
	p.midway = func(ctx context.Context) {
		called++
		if err := e.resetCache(ctx, p.calls, time.Minute); err != nil {
			t.Error(err)
		}
	}
	if err := p.play(t.Context(), conversation()); err != nil {
		t.Fatal(err)
	}
	if called != 1 || f.resetsRefused != -1 {
		t.Errorf("midway called %d times, %d refusals left", called, f.resetsRefused)
	}
	if e.gate.wait(t.Context()) != 0 {
		t.Error("the gate is still shut")
	}
	f.resetsRefused = 1 << 30
	err := e.resetCache(t.Context(), p.calls, 50*time.Millisecond)
	if err == nil || !strings.HasPrefix(err.Error(), "reset the cache of engine-7: ") {
		t.Errorf("error %v", err)
	}
}

func TestGateHoldsWhoComesWhileItIsShut(t *testing.T) {
	var g gate
	g.shut()
	g.shut()
	passed := make(chan time.Duration)
	go func() { passed <- g.wait(t.Context()) }()
	select {
	case <-passed:
		t.Fatal("passed a shut gate")
	default:
	}
	g.open()
	<-passed
	g.open()
	if g.wait(t.Context()) != 0 {
		t.Error("an open gate held somebody")
	}
}
