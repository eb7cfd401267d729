package workers_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// known is the router's list of workers, which a test changes.
type known struct {
	mu  sync.Mutex
	all []workers.Known
}

func (k *known) set(all ...workers.Known) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = all
}

func (k *known) list() []workers.Known {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.all
}

// TestARegisteredServerStays: a server that only a registration or an event source of the router
// names is the directory's until the router forgets the worker.
func TestARegisteredServerStays(t *testing.T) {
	for _, source := range []string{workers.FromRegistration, workers.FromEvents, workers.FromFile, workers.FromAgent} {
		t.Run(source, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &known{}
				k.set(workers.Known{ID: 33, Ranks: 1, Model: "tiny", BlockSize: 16, Endpoint: "http://a:8000", Source: source})
				r := &recorder{}
				d, end := start(t, workers.Options{
					Registry: r, Known: k.list, Client: &http.Client{Transport: &inProcess{hosts: map[string]http.Handler{"a:8000": tiny("tiny")}}},
				})
				defer end()
				settle()
				first, ok := d.Worker(33)
				if !ok || first.State != workers.Ready || first.Source != source {
					t.Fatalf("worker %+v", first)
				}
				for range 200 {
					time.Sleep(100 * time.Millisecond)
					synctest.Wait()
					if w, ok := d.Worker(33); !ok || w.State != workers.Ready || w.Since != first.Since {
						t.Fatalf("worker %+v, before it %+v", w, first)
					}
				}
				if len(r.all()) != 0 {
					t.Errorf("the directory registered %v", r.all())
				}
				k.set()
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if all := d.Workers(); len(all) != 0 {
					t.Errorf("%+v after the router forgot the worker", all[0])
				}
			})
		})
	}
}

// TestAnAnnouncementWins: a named server that an agent announces, by its URL or by its id,
// becomes the agent's worker, is not registered, and is registered again afterwards. It
// stays ready all the time.
func TestAnAnnouncementWins(t *testing.T) {
	for name, s := range map[string]string{"by URL": "http://a:8000", "by id": "http://elsewhere,id=77"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := &inProcess{hosts: map[string]http.Handler{"a:8000": tiny("tiny"), "elsewhere": tiny("tiny")}}
				r, k := &recorder{}, &known{}
				d, end := start(t, workers.Options{
					Specs: []workers.Spec{spec(t, s)}, Registry: r, Known: k.list, Client: &http.Client{Transport: network},
				})
				defer end()
				settle()
				own := d.Workers()[0].ID
				if w := d.Workers()[0]; w.State != workers.Ready || w.Source != workers.FromFlag || len(r.all()) != 1 {
					t.Fatalf("worker %+v, registered %v", w, r.all())
				}
				// The registration comes back as a worker of the router.
				k.set(workers.Known{ID: own, Ranks: 1, Model: "tiny", BlockSize: 16, Endpoint: d.Workers()[0].URL, Source: workers.FromRegistration})
				time.Sleep(20 * time.Second)
				if w := d.Workers()[0]; w.Source != workers.FromFlag || len(r.all()) != 1 {
					t.Fatalf("own registration counts as an announcement: %+v, registered %v", w, r.all())
				}
				d.Begin(own)
				k.set(workers.Known{ID: 77, FirstRank: 1, Ranks: 2, Model: "agents-name", BlockSize: 64, Endpoint: "http://a:8000/", Source: workers.FromAgent})
				time.Sleep(2 * time.Second)
				synctest.Wait()
				w, ok := d.Worker(77)
				if !ok || len(d.Workers()) != 1 || w.Source != workers.FromAgent || w.State != workers.Ready || w.Model != "agents-name" ||
					w.FirstRank != 1 || w.Ranks != 2 || w.Facts.BlockSize != 64 || len(r.all()) != 0 {
					t.Fatalf("worker %+v, registered %v", w, r.all())
				}
				d.Done(own, workers.OutcomeOK)
				for _, model := range []string{"tiny", "agents-name", ""} {
					if served, err := d.Resolve(model); err != nil || served != (workers.Served{Model: "agents-name", MaxLen: 100}) {
						t.Errorf("%q: %+v, %v", model, served, err)
					}
				}
				k.set()
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if w, ok := d.Worker(own); !ok || w.State != workers.Ready || w.Source != workers.FromFlag || len(r.all()) != 1 {
					t.Errorf("after the agent: %+v, registered %v", w, r.all())
				}
			})
		})
	}
}

// TestWorkersOfTheRouterAreServers: a worker that only the router knows is probed, stops
// getting requests when it fails, and leaves with its announcement. A worker without an
// endpoint is no server, so not every worker of the router may be sent to.
func TestWorkersOfTheRouterAreServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &inProcess{hosts: map[string]http.Handler{"a": tiny("m")}}
		k := &known{}
		k.set(workers.Known{ID: 5, Ranks: 1, Model: "m", BlockSize: 16, Endpoint: "http://a", Source: workers.FromFile})
		d, end := start(t, workers.Options{Known: k.list, Registry: &recorder{}, Client: &http.Client{Transport: network}})
		defer end()
		settle()
		if w, ok := d.Worker(5); !ok || w.State != workers.Ready || w.Source != workers.FromFile || d.AllowedFor("m") != nil {
			t.Fatalf("worker %+v, allowed %v", w, d.AllowedFor("m"))
		}
		network.set("a", nil)
		time.Sleep(5 * time.Second)
		if w, _ := d.Worker(5); w.State != workers.Unhealthy || d.AllowedFor("m") == nil || len(d.AllowedFor("m")) != 0 {
			t.Errorf("state %v, allowed %v", w.State, d.AllowedFor("m"))
		}
		network.set("a", tiny("m"))
		k.set(append(k.list(), workers.Known{ID: 6, Ranks: 1, Model: "m", BlockSize: 16, Source: "dynamo"})...)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if _, ok := d.Worker(6); ok || len(d.AllowedFor("m")) != 1 || len(d.AllowedFor("m")) != 1 {
			t.Errorf("allowed %v", d.AllowedFor("m"))
		}
		k.set()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(d.Workers()) != 0 {
			t.Errorf("workers %v", d.Workers())
		}
	})
}

// TestModelNames: an empty name needs a single model, and an adapter may be sent only to
// the workers that have it.
func TestModelNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := tiny("m"), tiny("m"), tiny("n")
		a.models = append(a.models, card("sql", "m", 0))
		b.models[0] = card("m", "", 50)
		c.health = 503
		network := &inProcess{hosts: map[string]http.Handler{"a": a, "b": b, "c": c}}
		d, end := start(t, workers.Options{
			Specs:  []workers.Spec{spec(t, "http://a,id=1"), spec(t, "http://b,id=2"), spec(t, "http://c,id=3")},
			Client: &http.Client{Transport: network},
		})
		defer end()
		settle()
		if served, err := d.Resolve(""); err != nil || served != (workers.Served{Model: "m", MaxLen: 50}) {
			t.Errorf("no name: %+v, %v", served, err)
		}
		if served, err := d.Resolve("sql"); err != nil || served != (workers.Served{Model: "m", LoRA: "sql", MaxLen: 100}) {
			t.Errorf("adapter: %+v, %v", served, err)
		}
		if got := d.AllowedFor("sql"); !cmp.Equal(got, map[kv.WorkerID]struct{}{1: {}}) {
			t.Errorf("adapter allows %v", got)
		}
		if got := d.AllowedFor("m"); got != nil {
			t.Errorf("model allows %v, want nil: all of its workers are ready", got)
		}
		if got := d.PrefillFor("m"); len(got) != 0 {
			t.Errorf("without roles, %v prefill", got)
		}
		if got := d.AllowedFor("none"); got == nil || len(got) != 0 {
			t.Errorf("unknown model allows %v", got)
		}
		want := []workers.Model{{Name: "m", MaxLen: 50}, {Name: "sql", Base: "m", MaxLen: 100}}
		if diff := cmp.Diff(want, d.Models()); diff != "" {
			t.Error(diff)
		}
		c.set(func() { c.health = 200 })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if _, err := d.Resolve(""); !errors.Is(err, workers.ErrModelRequired) || !strings.Contains(err.Error(), `["m" "n"]`) {
			t.Errorf("two models: %v", err)
		}
	})
}

// TestBadAnswers: nonsense makes a server unhealthy, with the reason, and nothing else.
func TestBadAnswers(t *testing.T) {
	for name, c := range map[string]struct{ models, want string }{
		"no JSON":          {`<html>`, "/v1/models: invalid character"},
		"no model":         {`{"data":[]}`, "no base model"},
		"adapters alone":   {`{"data":[` + card("x", "m", 1) + `]}`, "no base model"},
		"a bad name":       {`{"data":[{"id":"a\u0007"}]}`, "data[0].id"},
		"too many models":  {`{"data":[` + strings.Repeat(`{"id":"m"},`, 1024) + `{"id":"m"}]}`, "1025 models, want at most 1024"},
		"too much of them": {`{"data":[],"x":"` + strings.Repeat("x", 5<<20) + `"}`, "want at most 4194304 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := &inProcess{hosts: map[string]http.Handler{"a": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/v1/models" {
						fmt.Fprint(w, c.models)
					}
				})}}
				d, end := start(t, workers.Options{Specs: []workers.Spec{spec(t, "http://a,id=1")}, Client: &http.Client{Transport: network}})
				defer end()
				settle()
				if w, _ := d.Worker(1); w.State != workers.Starting || !strings.Contains(w.Problem, c.want) {
					t.Errorf("state %v, problem %q, want %q", w.State, w.Problem, c.want)
				}
			})
		})
	}
}

// TestWhatAServerLacksIsNamedOnce: by the flag that would give it.
func TestWhatAServerLacksIsNamedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		v := tiny("m")
		v.metrics = fmt.Sprintf(cacheConfigLine, 16, "False", 0, 64)
		other := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/v1/models":
				fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
			case "/health":
			default:
				http.NotFound(w, r)
			}
		})
		r := &recorder{}
		d, end := start(t, workers.Options{
			Specs:    []workers.Spec{spec(t, "http://a,block-size=32"), spec(t, "http://b,id=2"), spec(t, "http://c,id=3,block-size=8,events=tcp://*:5557")},
			Registry: r, Client: &http.Client{Transport: &inProcess{hosts: map[string]http.Handler{"a": v, "b": other, "c": other}}}, Log: zap.New(core),
		})
		defer end()
		settle()
		for _, w := range d.Workers() {
			d.NoteCachedTokens(w.ID, false) // as their answers show
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		for _, flag := range []string{"--kv-events-config", "--enable-prefix-caching", "--enable-scale-out", "--enable-prompt-tokens-details", "block-size= of the worker has no effect",
			"give it with block-size=", "give the endpoint with events="} {
			if n := logs.FilterMessageSnippet(flag).Len(); n != 1 {
				t.Errorf("%s is named %d times, want once", flag, n)
			}
		}
		all := r.all()
		if len(all) != 2 || all[3].BlockSize != 8 {
			t.Errorf("registered %v", all)
		}
		w, _ := d.Worker(3)
		if len(w.Facts.Events) != 1 || w.Facts.Events[0].Endpoint != "tcp://c:5557" {
			t.Errorf("events %v", w.Facts.Events)
		}
	})
}

// TestDNS: a worker for each address, kept through failures of the name server, removed
// when the name has lost the address.
func TestDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var answer []netip.Addr
		var failure error
		name, err := workers.ParseDNS("engines.example:8000,block-size=16", 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		name.Lookup = func(_ context.Context, host string) ([]netip.Addr, error) {
			mu.Lock()
			defer mu.Unlock()
			if host != "engines.example" {
				t.Errorf("host %q", host)
			}
			return answer, failure
		}
		resolve := func(err error, addresses ...string) {
			mu.Lock()
			defer mu.Unlock()
			answer, failure = nil, err
			for _, a := range addresses {
				answer = append(answer, netip.MustParseAddr(a))
			}
		}
		network := &inProcess{hosts: map[string]http.Handler{"192.0.2.1:8000": tiny("m"), "192.0.2.2:8000": tiny("m"), "[fd00::1]:8000": tiny("m")}}
		d, end := start(t, workers.Options{Finders: []workers.Finder{name}, Client: &http.Client{Transport: network}})
		defer end()
		for _, c := range []struct {
			err       error
			addresses []string
			want      string
		}{
			{errors.New("no server"), nil, ""},
			{nil, []string{"192.0.2.2", "192.0.2.1", "192.0.2.1", "fd00::1"}, "http://192.0.2.1:8000 http://192.0.2.2:8000"},
			{errors.New("no server"), nil, "http://192.0.2.1:8000 http://192.0.2.2:8000"},
			{nil, []string{"192.0.2.2"}, "http://192.0.2.2:8000"},
			{&net.DNSError{IsNotFound: true}, nil, ""},
			{nil, []string{"fd00::1"}, "http://[fd00::1]:8000"},
		} {
			resolve(c.err, c.addresses...)
			time.Sleep(30 * time.Second)
			synctest.Wait()
			var urls []string
			for _, w := range d.Workers() {
				if w.State != workers.Ready || w.Source != workers.FromDNS {
					t.Errorf("worker %+v", w)
				}
				urls = append(urls, w.URL)
			}
			if got := sorted(urls); got != c.want {
				t.Errorf("%v, %v: workers %q, want %q", c.addresses, c.err, got, c.want)
			}
		}
	})
	for text, want := range map[string]string{
		"engines":                "want NAME:PORT",
		":8000":                  "want NAME:PORT",
		"engines:0":              "want NAME:PORT",
		"engines:8000,id=1":      "id: 1 cannot be the id of several servers",
		"engines:8000,role=best": `role: "best"`,
	} {
		if _, err := workers.ParseDNS(text, time.Second); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if _, err := workers.ParseDNS("engines:8000", time.Millisecond); err == nil || !strings.Contains(err.Error(), "1ms is not in 100ms..1h0m0s") {
		t.Errorf("period: %v", err)
	}
}

// TestADirectoryIsBounded: workers beyond the limit get no requests, and the log says so.
func TestADirectoryIsBounded(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	all := make([]workers.Known, workers.MaxWorkers+10)
	for i := range all {
		all[i] = workers.Known{ID: kv.WorkerID(i + 1), Ranks: 1, Model: "m", BlockSize: 16, Endpoint: fmt.Sprintf("http://w%d", i), Source: workers.FromAgent}
	}
	d, err := workers.New(workers.Options{Known: func() []workers.Known { return all }, Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(d.Workers()); n != workers.MaxWorkers || logs.FilterMessageSnippet("too many workers").Len() != 1 {
		t.Errorf("%d workers, want %d; logged %v", n, workers.MaxWorkers, logs.All())
	}
	if allowed := d.AllowedFor("m"); allowed == nil || len(allowed) != 0 {
		t.Errorf("%d workers that were not asked are allowed", len(allowed))
	}
}
