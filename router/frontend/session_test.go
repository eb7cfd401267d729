package frontend_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// sessionBench is a bench of three workers that keeps sessions together.
func sessionBench(t *testing.T) *bench {
	t.Helper()
	var all []*server
	for id := range 3 {
		all = append(all, newServer(t, kv.WorkerID(id+1), streams(chunk, "[DONE]")))
	}
	return newBench(t, frontend.Options{SessionTTL: time.Minute}, all...)
}

// at sends a request of a session with a new prompt, and returns the worker that served it.
func (b *bench) at(session string, prompt string, more ...string) string {
	b.t.Helper()
	body := `{"model":"m","prompt":[` + prompt + `],"stream":true}`
	resp, got := b.post("/v1/completions", body, append([]string{"X-Dynamo-Session-ID", session}, more...)...)
	if resp.StatusCode != http.StatusOK {
		b.t.Fatalf("status %d: %s", resp.StatusCode, got)
	}
	return resp.Header.Get(frontend.WorkerHeader)
}

// prompts of many requests, which have nothing in common.
var strangers = []string{"1,2,3,4,5", "11,2,3,4,5", "21,2,3,4,5", "31,2,3,4,5", "41,2,3,4,5", "51,2,3,4,5", "61,2,3,4,5", "71,2,3,4,5", "81,2,3,4,5", "91,2,3,4,5", "101,2,3,4,5", "111,2,3,4,5"}

// Requests of a session go to one worker, whatever their prompts are, and other sessions do not.
func TestSessionStaysWithItsWorker(t *testing.T) {
	b := sessionBench(t)
	first, others := b.at("a", "7,8,9"), map[string]bool{}
	for _, prompt := range strangers {
		if got := b.at("a", prompt); got != first {
			t.Fatalf("the session went from %s to %s", first, got)
		}
		others[b.at("session of "+prompt, "200,"+prompt)] = true
	}
	if len(others) < 2 {
		t.Errorf("other sessions are at %v alone", others)
	}
	if s := b.door.Stats().Sessions; s.Sessions != 1+len(strangers) || s.Followed != uint64(len(strangers)) || s.Moved != 0 {
		t.Errorf("%+v", s)
	}
	b.expectIdle()
}

// A session leaves a worker that drains or is lost, and stays with the next one.
func TestSessionLeavesALostWorker(t *testing.T) {
	b := sessionBench(t)
	first := b.at("a", "7,8,9")
	b.setState(first, workers.Draining)
	second := b.at("a", "7,8,9")
	if second == first {
		t.Fatalf("the session is still at %s", first)
	}
	b.setState(first, workers.Ready)
	for _, prompt := range strangers {
		if got := b.at("a", prompt); got != second {
			t.Fatalf("the session went from %s to %s", second, got)
		}
	}
	if s := b.door.Stats().Sessions; s.Moved != 1 {
		t.Errorf("%+v, want one move", s)
	}
	b.expectIdle()
}

// setState changes the state of a worker, which takes requests in any state but gets those of
// sessions only when it is ready.
func (b *bench) setState(name string, state workers.State) {
	for i, w := range b.directory.workers {
		if (kv.Worker{ID: w.ID}).String() == name {
			changed := *w
			changed.State = state
			b.directory.workers[i] = &changed
		}
	}
}

// A failed worker's session moves with the retry.
func TestSessionMovesWithARetry(t *testing.T) {
	dead := newServer(t, 1, dies())
	b := newBench(t, frontend.Options{SessionTTL: time.Minute}, dead, newServer(t, 2, streams(chunk, "[DONE]")))
	for range 20 {
		if got := b.at("a", "7,8,9"); got != "2/0" {
			t.Fatalf("served by %s", got)
		}
	}
	if n := len(dead.got()); n > 1 {
		t.Errorf("the dead worker got %d requests of the session, want at most one", n)
	}
	b.expectIdle()
}

// A pinned request does not move its session, the last request of a session ends it, and an
// id that is too long is refused.
func TestSessionHeaders(t *testing.T) {
	b := sessionBench(t)
	home := b.at("a", "7,8,9")
	for _, w := range []string{"1/0", "2/0", "3/0"} {
		if got := b.at("a", "7,8,9", frontend.WorkerPinHeader, w); got != w {
			t.Errorf("served by %s, pinned to %s", got, w)
		}
	}
	if got := b.at("a", "1", "X-Dynamo-Session-Final", "true"); got != home {
		t.Errorf("the session went from %s to %s", home, got)
	}
	if s := b.door.Stats().Sessions; s.Sessions != 0 {
		t.Errorf("%+v after the last request", s)
	}
	resp, body := b.post("/v1/completions", prompt, "X-Session-Id", strings.Repeat("x", 300))
	if message, _ := errorOf(t, body); resp.StatusCode != 400 || !strings.Contains(message, "X-Session-Id") {
		t.Errorf("status %d, %s", resp.StatusCode, body)
	}
	b.expectIdle()
}
