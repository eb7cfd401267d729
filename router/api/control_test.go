package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// What changes the router or shows the whole index is not on the port of clients and
// metrics; the answer says where it is.
func TestTheServingPortChangesNothing(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, r *registry.Source) {
		for _, c := range [][3]string{
			{"GET", "/v1/dump", ""},
			{"POST", "/busy_threshold", `{"active_prefill_tokens_threshold":1}`},
			{"POST", "/v1/workers", `{"worker_id":5,"model":"m","block_size":4}`},
			{"DELETE", "/v1/workers?worker_id=5", ""},
		} {
			answer := routertest.Call(t, New(b.Router, Options{}).Handler(), c[0], c[1], "", c[2])
			if got := routertest.Text(t, answer); answer.StatusCode != http.StatusForbidden || !strings.Contains(got, "control listener") {
				t.Errorf("%s %s: %d %s", c[0], c[1], answer.StatusCode, got)
			}
		}
		b.Pass(time.Second)
		busy, err := b.Router.Busy("")
		if n := len(b.Router.Workers()); err != nil || n != 0 || busy.PrefillTokens != nil {
			t.Errorf("%d workers were registered, busy thresholds %+v, %v", n, busy, err)
		}
		for _, c := range [][3]string{
			{"POST", "/v1/workers", `{"worker_id":5,"model":"m","block_size":4}`},
			{"POST", "/busy_threshold", `{"active_prefill_tokens_threshold":1}`},
			{"GET", "/v1/dump", ""}, {"GET", "/v1/feeds", ""}, {"GET", "/v1/agents", ""}, {"DELETE", "/v1/workers?worker_id=5", ""},
		} {
			if answer := routertest.Call(t, New(b.Router, Options{}).ControlHandler(), c[0], c[1], "", c[2]); answer.StatusCode != http.StatusOK {
				t.Errorf("control listener: %s %s: %d %s", c[0], c[1], answer.StatusCode, routertest.Text(t, answer))
			}
		}
	})
}

// A page of another site cannot have its reader's browser route or register anything.
func TestCrossSitePostsAreRefused(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, r *registry.Source) {
		routertest.TwoWorkers(b)
		for path, body := range map[string]string{
			"/v1/route": routertest.NewBody("", 1), "/v1/workers": `{"worker_id":5,"model":"m","block_size":4}`,
		} {
			for _, origin := range []string{"", "https://elsewhere.example"} {
				request := httptest.NewRequest("POST", path, strings.NewReader(body))
				request.Header.Set("Content-Type", "text/plain")
				want := http.StatusOK
				if origin != "" {
					request.Header.Set("Origin", origin)
					want = http.StatusForbidden
				}
				w := httptest.NewRecorder()
				New(b.Router, Options{Registration: true}).Handler().ServeHTTP(w, request)
				if w.Code != want {
					t.Errorf("%s from %q: %d, want %d: %s", path, origin, w.Code, want, w.Body)
				}
			}
		}
	})
}

// The operators' log has each call that may change the router, with what it was about, and no
// prompt, adapter or salt. Reads and dry runs are for the level debug.
func TestOperatorsLogSaysWhatCallsWereAbout(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, r *registry.Source) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{Log: zap.New(core)}).ControlHandler()
		for i, c := range []struct{ method, path, body, want string }{
			{"POST", "/v1/route", `{"method":"new","request_id":"r1","tokens":[77123],"cache_namespace":"salted"}`, `info POST /v1/route [new, request "r1"] 200`},
			{"POST", "/v1/route", `{"method":"mark_prefill","request_id":"r1"}`, `info POST /v1/route [mark_prefill, request "r1"] 200`},
			{"POST", "/v1/route", `{"method":"mark_free","request_id":"r1"}`, `info POST /v1/route [mark_free, request "r1"] 200`},
			{"POST", "/v1/route", `{"method":"add_request","request_id":"r2","tokens":[77123],"worker":{"worker_id":1}}`, `info POST /v1/route [add_request, request "r2", worker 1] 200`},
			{"POST", "/v1/route", `{"method":"register_workers","worker_ids":[8,9],"model":"m","block_size":4}`, `info POST /v1/route [register_workers, model "m", 2 workers from 8] 200`},
			{"POST", "/v1/route", `{"method":"new","tokens":[77123],"update_states":false}`, `debug POST /v1/route [new] 200`},
			{"POST", "/v1/route", `{"method":"potential_loads","tokens":[77123]}`, `debug POST /v1/route [potential_loads] 200`},
			{"POST", "/v1/route", `{"method":"nothing"}`, `info POST /v1/route [] 400`},
			{"POST", "/v1/workers", `{"worker_id":5,"model":"m","block_size":4}`, `info POST /v1/workers [worker 5, model "m", 30 seconds] 200`},
			{"DELETE", "/v1/workers?worker_id=5", "", `info DELETE /v1/workers?worker_id=5 [worker 5] 200`},
			{"POST", "/busy_threshold", `{"active_prefill_tokens_threshold":1}`, `info POST /busy_threshold [busy thresholds, model ""] 200`},
			{"POST", "/v1/snapshot?dry_run=true", "", `info POST /v1/snapshot?dry_run=true [the index, dry run] 409`},
			{"GET", "/v1/feeds", "", `debug GET /v1/feeds [] 200`},
		} {
			routertest.Call(t, h, c.method, c.path, "", c.body)
			lines := logs.FilterMessage("operator's call").All()
			if len(lines) != i+1 {
				t.Errorf("%s: %d lines in all, want %d", c.body, len(lines), i+1)
				return
			}
			m := lines[i].ContextMap()
			got := fmt.Sprintf("%s %s [%s] %v", lines[i].Level, m["call"], m["about"], m["status"])
			if got != c.want {
				t.Errorf("%s: line\n%s, want\n%s (%v)", c.body, got, c.want, m["reason"])
			}
			if strings.Contains(fmt.Sprint(m), "77123") || strings.Contains(fmt.Sprint(m), "salted") {
				t.Errorf("the log tells too much: %v", m)
			}
		}
	})
}

// dumped is a dump as triples.
func dumped(t *testing.T, b *routertest.Bench) (rows []string) {
	t.Helper()
	var events []kvevent.StoredJSON
	if err := json.Unmarshal([]byte(routertest.Text(t, routertest.Call(t, New(b.Router, Options{}).ControlHandler(), "GET", "/v1/dump", "", ""))), &events); err != nil {
		t.Fatal(err)
	}
	for i := range events {
		if events[i].Event.ID != uint64(i) {
			t.Errorf("event %d has id %d", i, events[i].Event.ID)
		}
		for range events[i].Blocks() {
			rows = append(rows, events[i].Owner().String()+" "+events[i].Tier)
		}
	}
	slices.Sort(rows)
	return rows
}

// A dump is the index as stored events in Dynamo's JSON.
func TestDumpIsRouterEvents(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		if got := routertest.Text(t, routertest.Call(t, New(b.Router, Options{}).ControlHandler(), "GET", "/v1/dump", "", "")); got != "[]" {
			t.Errorf("a dump of nothing: %s", got)
		}
		routertest.TwoWorkers(b)
		if answer := routertest.Call(t, New(b.Router, Options{}).ControlHandler(), "GET", "/v1/dump?model=another", "", ""); answer.StatusCode != http.StatusNotFound {
			t.Errorf("a dump of another model: %s", answer.Status)
		}
		want := []string{"pool 77 disk", "pool 77 host_pinned", "pool 77 host_pinned", "worker 2/0 device"}
		if got := dumped(t, b); !slices.Equal(got, want) {
			t.Errorf("dump %q, want %q", got, want)
		}
		seq := kv.AppendSequence(nil, new(kv.Hasher).AppendLocals(nil, sourcetest.Tokens(1), sourcetest.BlockSize, kv.LocalSeed("", "")))
		local := new(kv.Hasher).AppendLocals(nil, sourcetest.Tokens(1), sourcetest.BlockSize, kv.LocalSeed("", ""))
		block, err := json.Marshal(kvevent.BlockJSON{Hash: uint64(seq[0]), Tokens: uint64(local[0])})
		if err != nil {
			t.Fatal(err)
		}
		line := `{"worker_id":2,"storage_tier":"device","event":{"event_id":0,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[` +
			string(block) + `]}},"dp_rank":0}}`
		if got := routertest.Text(t, routertest.Call(t, New(b.Router, Options{}).ControlHandler(), "GET", "/v1/dump", "", "")); !strings.Contains(strings.Replace(got, `"event_id":1`, `"event_id":0`, 1), line) {
			t.Errorf("dump %s lacks %s", got, line)
		}
	})
}

// countingWriter counts what is written and fails from a number of bytes on. It takes
// the live heap once, at another number of bytes.
type countingWriter struct {
	header     http.Header
	bytes      int
	most, look int
	heap       uint64
}

// liveHeap is how many bytes are in use now.
func liveHeap() uint64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

func (w *countingWriter) Header() http.Header { return w.header }
func (w *countingWriter) WriteHeader(int)     {}
func (w *countingWriter) Write(p []byte) (int, error) {
	if w.bytes += len(p); w.most > 0 && w.bytes > w.most {
		return 0, errors.New("connection reset by peer")
	}
	if w.look > 0 && w.bytes > w.look {
		w.look, w.heap = 0, liveHeap()
	}
	return len(p), nil
}

// A dump goes out as the index is walked: it takes the same few buffers whatever the
// index's size, and ends when the client has gone.
func TestDumpIsStreamed(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		m, err := b.Router.Model("")
		if err != nil {
			t.Fatal(err)
		}
		const blocks = 1 << 16
		e := kvevent.RouterEvent{Kind: kvevent.Stored, Owner: sourcetest.WorkerOwner(1), Tier: kv.TierDevice}
		for i := range blocks {
			h := uint64(i+1) * 0x9e3779b97f4a7c15
			e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: kv.SequenceHash(h), Local: kv.LocalHash(h ^ 5)})
			if len(e.Blocks) == 64 {
				if err := m.Index().Apply(&e); err != nil {
					t.Fatal(err)
				}
				e.Blocks = e.Blocks[:0]
			}
		}
		dump := func(w *countingWriter) int {
			w.header = http.Header{}
			New(b.Router, Options{}).ControlHandler().ServeHTTP(w, httptest.NewRequest("GET", "/v1/dump", http.NoBody))
			return w.bytes
		}
		before := liveHeap()
		w := &countingWriter{look: 40 * blocks} // most of it is written by then
		if written := dump(w); written < 60*blocks || w.heap > before+1<<20 {
			t.Errorf("of %d bytes of dump, %d are in memory, want at most 1 MiB", written, int64(w.heap-before))
		}
		if written := dump(&countingWriter{most: 100 << 10}); written > 300<<10 {
			t.Errorf("%d bytes are written for a client that has gone", written)
		}
	})
}
