package workers_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// inProcess answers requests by the host's handler without a network, for synctest.
type inProcess struct {
	mu    sync.Mutex
	hosts map[string]http.Handler
}

// RoundTrip implements http.RoundTripper.
func (p *inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	h := p.hosts[r.URL.Host]
	p.mu.Unlock()
	if h == nil {
		return nil, syscall.ECONNREFUSED
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

// set replaces the handler of a host; nil refuses connections.
func (p *inProcess) set(host string, h http.Handler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hosts[host] = h
}

// tiny is a server without a network.
func tiny(models ...string) *vllm {
	v := &vllm{health: 200, metrics: fmt.Sprintf(cacheConfigLine, 16, "True", 0, 64), sources: "{}", render: 403}
	for _, m := range models {
		v.models = append(v.models, card(m, "", 100))
	}
	return v
}

// start runs a directory in a bubble and returns what ends it.
func start(t *testing.T, o workers.Options) (*workers.Directory, func()) {
	t.Helper()
	d, err := workers.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	return d, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// settle lets the directory publish what it knows.
func settle() {
	time.Sleep(150 * time.Millisecond) // a probe may have to wait for 100 ms
	synctest.Wait()
}

// TestFailedRequestsKeepRequestsAway: after five failures in a row a server gets nothing for
// a second, then two; one success ends that. Probes succeed all the time.
func TestFailedRequestsKeepRequestsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &inProcess{hosts: map[string]http.Handler{"a": tiny("m")}}
		d, end := start(t, workers.Options{Specs: []workers.Spec{spec(t, "http://a,id=7")}, Client: &http.Client{Transport: net}})
		defer end()
		settle()
		state := func() workers.State { w, _ := d.Worker(7); return w.State }
		request := func(o workers.Outcome) {
			d.Begin(7)
			d.Done(7, o)
			settle()
		}
		for range 4 {
			request(workers.OutcomeFailed)
			request(workers.OutcomeClient) // says nothing
		}
		if state() != workers.Ready {
			t.Fatal("4 failures are enough")
		}
		request(workers.OutcomeFailed)
		if w, _ := d.Worker(7); w.State != workers.Unhealthy || !strings.Contains(w.Problem, "last 5 requests") {
			t.Fatalf("after 5 failures: %v, %q", w.State, w.Problem)
		}
		if _, err := d.Resolve("m"); !errors.Is(err, workers.ErrNoWorkers) {
			t.Errorf("resolve: %v", err)
		}
		time.Sleep(700 * time.Millisecond)
		if state() != workers.Unhealthy {
			t.Error("the pause is shorter than a second")
		}
		time.Sleep(5 * time.Second)
		if state() != workers.Ready {
			t.Error("the pause does not end")
		}
		request(workers.OutcomeFailed)
		if state() != workers.Unhealthy {
			t.Error("one failure after a pause is not enough")
		}
		request(workers.OutcomeOK)
		if state() != workers.Ready {
			t.Error("one success does not end the pause")
		}
		if n := d.Inflight(7); n != 0 {
			t.Errorf("%d requests in flight", n)
		}
	})
}

// TestAFailedRequestProbesNow: the server is asked at once, not at its next turn.
func TestAFailedRequestProbesNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &inProcess{hosts: map[string]http.Handler{"a": tiny("m")}}
		d, end := start(t, workers.Options{Specs: []workers.Spec{spec(t, "http://a,id=7")}, ProbeEvery: time.Hour, Client: &http.Client{Transport: net}})
		defer end()
		settle()
		time.Sleep(time.Minute)
		net.set("a", nil)
		d.Begin(7)
		d.Done(7, workers.OutcomeFailed)
		settle()
		if w, _ := d.Worker(7); w.State != workers.Unhealthy || !strings.Contains(w.Problem, "connection refused") {
			t.Errorf("%v, %q", w.State, w.Problem)
		}
	})
}

// TestDrain: a drained worker finishes its requests and gets no new ones, until it is
// undrained.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &inProcess{hosts: map[string]http.Handler{"a": tiny("m"), "b": tiny("m")}}
		r := &recorder{}
		d, end := start(t, workers.Options{
			Specs: []workers.Spec{spec(t, "http://a,id=1"), spec(t, "http://b,id=2")}, Registry: r, Client: &http.Client{Transport: net},
		})
		defer end()
		settle()
		d.Begin(1)
		if err := d.Drain(1, true); err != nil {
			t.Fatal(err)
		}
		settle()
		if w, _ := d.Worker(1); w.State != workers.Draining || d.Inflight(1) != 1 {
			t.Errorf("state %v with %d requests", w.State, d.Inflight(1))
		}
		if _, ok := d.AllowedFor("m")[1]; ok || len(d.AllowedFor("m")) != 1 || len(d.AllowedFor("m")) != 1 {
			t.Errorf("allowed %v", d.AllowedFor("m"))
		}
		if _, ok := r.all()[1]; ok {
			t.Error("a draining worker is registered")
		}
		if err := d.Drain(1, false); err != nil {
			t.Fatal(err)
		}
		settle()
		if d.AllowedFor("m") != nil || len(r.all()) != 2 {
			t.Errorf("after undrain: allowed %v, registered %v", d.AllowedFor("m"), r.all())
		}
		if err := d.Drain(3, true); !errors.Is(err, workers.ErrUnknownWorker) {
			t.Errorf("unknown worker: %v", err)
		}
	})
}

// TestSlowStart: a server that became ready gets a growing share, and a model whose servers
// all are new gets all of its requests.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &inProcess{hosts: map[string]http.Handler{"a": tiny("m")}}
		d, end := start(t, workers.Options{
			Specs: []workers.Spec{spec(t, "http://a,id=1"), spec(t, "http://b,id=2")}, SlowStart: 100 * time.Second, Client: &http.Client{Transport: net},
		})
		defer end()
		share := func(id kv.WorkerID) (n int) {
			for range 2000 {
				set := d.AllowedFor("m")
				if set != nil && len(set) == 0 {
					t.Fatal("no worker is allowed")
				}
				if _, ok := set[id]; ok || set == nil {
					n++
				}
			}
			return n
		}
		settle()
		if n := share(1); n != 2000 {
			t.Errorf("the only server gets %d of 2000", n)
		}
		time.Sleep(200 * time.Second)
		net.set("b", tiny("m"))
		time.Sleep(54 * time.Second)
		synctest.Wait()
		if n := share(2); n < 850 || n > 1150 {
			t.Errorf("after half of its slow start the new server gets %d of 2000", n)
		}
		if n := share(1); n != 2000 {
			t.Errorf("the old server gets %d of 2000", n)
		}
		time.Sleep(60 * time.Second)
		synctest.Wait()
		if d.AllowedFor("m") != nil {
			t.Error("the slow start does not end")
		}
	})
}

// TestCachedTokens: what answers show becomes a fact.
func TestCachedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, end := start(t, workers.Options{
			Specs: []workers.Spec{spec(t, "http://a,id=1")}, Client: &http.Client{Transport: &inProcess{hosts: map[string]http.Handler{"a": tiny("m")}}},
		})
		defer end()
		seen := false
		for _, reported := range []bool{false, true, false} {
			d.NoteCachedTokens(1, reported)
			seen = seen || reported
			settle()
			if w, _ := d.Worker(1); (w.Facts.CachedTokens == workers.Yes) != seen || w.Facts.CachedTokens == workers.Unknown {
				t.Errorf("%v after %v", w.Facts.CachedTokens, reported)
			}
		}
	})
}

// TestAPIKey: the key is sent, never shown, and its absence is named.
func TestAPIKey(t *testing.T) {
	v := newVLLM(t, func(v *vllm) { v.key = "sesame" })
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := run(t, workers.Options{Specs: []workers.Spec{spec(t, v.URL+",api-key-file="+path)}})
	eventually(t, d, "the server is ready", func() bool { return ready(d, 1) })
	header := http.Header{}
	d.Workers()[0].Authorize(header)
	if header.Get("Authorization") != "Bearer sesame" {
		t.Errorf("headers %v", header)
	}
	without := run(t, workers.Options{Specs: []workers.Spec{spec(t, v.URL)}})
	eventually(t, without, "the missing key is named", func() bool { return strings.Contains(without.Workers()[0].Problem, "api-key-file=") })
}

// Workers that only prefill get no whole requests.
func TestRolesDivideTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := tiny("m"), tiny("m"), tiny("m")
		b.models = append(b.models, card("sql", "m", 0))
		network := &inProcess{hosts: map[string]http.Handler{"a": a, "b": b, "c": c}}
		d, end := start(t, workers.Options{
			Specs:  []workers.Spec{spec(t, "http://a,id=1"), spec(t, "http://b,id=2,role=prefill"), spec(t, "http://c,id=3,role=decode")},
			Client: &http.Client{Transport: network},
		})
		defer end()
		settle()
		for model, want := range map[string][2][]kv.WorkerID{"m": {{1, 3}, {2}}, "sql": {{}, {2}}, "none": {{}, {}}} {
			for i, got := range []map[kv.WorkerID]struct{}{d.AllowedFor(model), d.PrefillFor(model)} {
				if ids := slices.Sorted(maps.Keys(got)); !slices.Equal(ids, want[i]) {
					t.Errorf("model %s: set %d is %v, want %v", model, i, ids, want[i])
				}
			}
			if d.AllowedFor(model) == nil {
				t.Errorf("model %s: all workers of the router get whole requests", model)
			}
		}
	})
}
