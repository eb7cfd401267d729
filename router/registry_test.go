package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestRegisteredWorkersAreCandidatesWithoutHits: requests can go to them, they never
// have a block, and a renewal keeps them.
func TestRegisteredWorkersAreCandidatesWithoutHits(t *testing.T) {
	onRegistry(t, RegistryOptions{}, func(b *bench, r *Registry) {
		g := someWorker(5)
		g.Ranks = 2
		if err := r.Register(g, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		b.pass(time.Second)
		b.expectWorkers("registered", "5/0 http, 5/1 http")
		if q := b.router.Quality(); q != QualityFallback {
			t.Errorf("quality %s: nothing is known of any cache", q)
		}
		if m := b.best(promptTokens(1)); m.Worker.ID != 5 || m.Hits.Total() != 0 {
			t.Errorf("match %+v", m)
		}
		p := b.publisher(11, workerOwner(1), 0)
		b.send(p.announce(), p.store(kv.TierDevice, promptTokens(1, 2)))
		b.expect("one worker has events", promptTokens(1, 2), 1, 2, QualityExact)
		b.pass(8 * time.Second)
		b.send(p.announce())
		g.Ranks = 1
		if err := r.Register(g, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		b.pass(5 * time.Second)
		b.send(p.announce())
		b.expectWorkers("renewed with one rank less", "1/0 agent, 5/0 http")
		b.pass(7 * time.Second)
		b.expectWorkers("not renewed", "1/0 agent")
		if s := r.RegistryStats(); s.Expired != 1 || s.Registrations != 2 || s.FromHTTP != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestPublisherWinsOverRegistration: whoever has events speaks for its worker, and the
// registration holds again when it has gone or fallen silent, but not in an outage.
func TestPublisherWinsOverRegistration(t *testing.T) {
	onRegistry(t, RegistryOptions{}, func(b *bench, r *Registry) {
		if err := r.Register(someWorker(5), time.Hour); err != nil {
			t.Fatal(err)
		}
		b.pass(2 * time.Second)
		b.expectWorkers("alone", "5/0 http")
		p := b.publisher(11, workerOwner(5), 0)
		b.send(p.announce(), p.store(kv.TierDevice, promptTokens(1, 2)), p.announce())
		for range 20 {
			b.pass(time.Second)
			b.send(p.announce())
		}
		b.expectWorkers("its agent speaks", "5/0 agent")
		b.expect("with its blocks", promptTokens(1, 2), 5, 2, QualityExact)
		b.send(Frame{Kind: FrameDisconnected})
		b.pass(time.Minute)
		b.expectWorkers("in an outage", "5/0 agent")
		b.expect("in an outage", promptTokens(1, 2), 5, 2, QualityDegraded)
		b.send(Frame{Kind: FrameConnected}, p.announce())
		b.expect("after it", promptTokens(1, 2), 5, 2, QualityExact)
		b.pass(20 * time.Second)
		b.expectWorkers("silent for too long", "5/0 http")
		if m := b.best(promptTokens(1, 2)); m.Hits.Total() != 0 {
			t.Errorf("match %+v: what nobody speaks for is not known", m)
		}
		q := b.publisher(12, workerOwner(5), 0)
		b.send(q.announce(), q.store(kv.TierDevice, promptTokens(3)), q.announce())
		b.expectWorkers("back under another id", "5/0 agent")
		b.send(q.goodbye())
		b.pass(2 * time.Second)
		b.expectWorkers("said goodbye", "5/0 http")
		if !r.Unregister(5) || r.Unregister(5) {
			t.Error("a registration ends once")
		}
		b.pass(2 * time.Second)
		b.expectWorkers("unregistered", "")
		if s := b.router.Stats().Feeds; s.Refused != 0 || s.Divergences != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestQueriesGoWhereThePublisherIs: a gap is repaired through the registry.
func TestQueriesGoWhereThePublisherIs(t *testing.T) {
	onRegistry(t, RegistryOptions{}, func(b *bench, r *Registry) {
		p := b.publisher(11, workerOwner(1), 0)
		p.store(kv.TierDevice, promptTokens(1, 2)) // lost
		b.send(p.announce())
		b.expect("by a dump", promptTokens(1, 2), 1, 2, QualityExact)
		if _, err := r.Query(t.Context(), 12, kvevent.QueryRequest{}); err == nil {
			t.Error("a query of nobody was answered")
		}
	})
}

// TestRegistrationsThatDoNotFitAreRefused: model and block size are the cluster's, and
// the file's workers are the file's.
func TestRegistrationsThatDoNotFitAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "workers.json")
	writeFile(t, file, `{"workers":[{"worker_id":9,"model":"m","block_size":4}]}`)
	onRegistry(t, RegistryOptions{File: file}, func(b *bench, r *Registry) {
		b.pass(time.Second)
		b.expectWorkers("from the file", "9/0 file")
		for want, change := range map[string]func(*Registration){
			"model":                        func(g *Registration) { g.Model = "" },
			"worker_id: 0":                 func(g *Registration) { g.WorkerID = 0 },
			"worker_id: 9 is known":        func(g *Registration) { g.WorkerID = 9 },
			"block_size: 0":                func(g *Registration) { g.BlockSize = 0 },
			"ranks: 1025":                  func(g *Registration) { g.Ranks = 1025 },
			"endpoint":                     func(g *Registration) { g.Endpoint = "nowhere" },
			"a URL with credentials":       func(g *Registration) { g.Endpoint = "http://u:hunter2@e:1" },
			"namespace":                    func(g *Registration) { g.Namespace = "12" },
			"has a control character":      func(g *Registration) { g.Model = "m\x1b[2J" },
			"model: 1025 bytes, want 1 to": func(g *Registration) { g.Model = strings.Repeat("x", 1025) },
		} {
			g := someWorker(5)
			change(g)
			if err := r.Register(g, time.Minute); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %s", err, want)
			}
		}
		if err := r.Register(someWorker(5), time.Millisecond); err == nil || !strings.Contains(err.Error(), "ttl_seconds") {
			t.Errorf("error %v, want ttl_seconds", err)
		}
		if r.Unregister(9) {
			t.Error("the file's worker was unregistered")
		}
		if s := r.RegistryStats(); s.Refusals != 11 || s.Registrations != 0 || s.FromFile != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestFileIsFollowed: a change is taken over within a poll, and one that is wrong
// changes nothing.
func TestFileIsFollowed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "workers.json")
	const worker = `{"worker_id":%d,"ranks":%d,"model":"m","block_size":4,"pool":77}`
	writeFile(t, file, fmt.Sprintf(`{"workers":[`+worker+`]}`, 9, 2))
	onRegistry(t, RegistryOptions{File: file}, func(b *bench, r *Registry) {
		b.pass(time.Second)
		b.expectWorkers("at first", "9/0 file, 9/1 file")
		writeFile(t, file, fmt.Sprintf(`{"workers":[`+worker+`,`+worker+`]}`, 9, 1, 10, 1))
		b.pass(3 * time.Second)
		b.expectWorkers("changed", "9/0 file, 10/0 file")
		writeFile(t, file, `{"workers":[{"worker_id":0}], "and": 1}`)
		b.pass(10 * time.Second)
		b.expectWorkers("wrong", "9/0 file, 10/0 file")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		b.pass(10 * time.Second)
		b.expectWorkers("missing", "9/0 file, 10/0 file")
		writeFile(t, file, `{}`)
		b.pass(3 * time.Second)
		b.expectWorkers("empty", "")
		if s := r.RegistryStats(); s.FileReads != 3 || s.FileErrors != 2 {
			t.Errorf("stats %+v, want 3 files taken over and 2 not, each told once", s)
		}
	})
}

func TestWorkersFileErrorsNameTheField(t *testing.T) {
	worker := `{"worker_id":9,"model":"m","block_size":4}`
	for text, want := range map[string]string{
		`[]`:                              "want an object, got array",
		`{"agents":["x"]}`:                "agents[0]",
		`{"agents":["http://a:1"]}`:       "does not listen over HTTP",
		`{"workers":[{}]}`:                "workers[0].worker_id",
		`{"workers":[` + worker + `]} {}`: "something follows",
		`{"workers":[` + worker + `,` + worker + `]}`:                            "workers[1].worker_id: 9 is there twice",
		`{"workers":[` + worker + `,{"worker_id":1,"model":"","block_size":4}]}`: "workers[1].model",
		`{"workers":[{"worker_id":9,"colour":4}]}`:                               "colour",
		`{"workers":[{"worker_id":-9}]}`:                                         "worker_id",
		`{"workers"`:                                                             "not a whole JSON value",
	} {
		file := filepath.Join(t.TempDir(), "workers.json")
		writeFile(t, file, text)
		g, err := NewRegistry(RegistryOptions{File: file})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", text, err, want)
		}
		if g != nil {
			g.Close()
		}
	}
	if _, err := NewRegistry(RegistryOptions{File: filepath.Join(t.TempDir(), "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := NewRegistry(RegistryOptions{Poll: -1}); err == nil {
		t.Error("a negative poll was accepted")
	}
}

// TestRegistrationOverHTTP: the calls, their answers, and what the router shows.
func TestRegistrationOverHTTP(t *testing.T) {
	onRegistryWith(t, Options{HTTPRegistration: true}, RegistryOptions{}, func(b *bench, r *Registry) {
		h := b.router.Handler()
		const body = `{"worker_id":5,"model":"m","block_size":4,"pool":77,"endpoint":"http://e:1","device_blocks":100,"ttl_seconds":20}`
		for _, c := range []struct {
			method, path, body string
			status             int
			want               string
		}{
			{"POST", "/v1/workers", body, 200, `{"worker_id":5,"ranks":1,"expires_in_seconds":20}`},
			{"POST", "/v1/workers", strings.Replace(body, `"worker_id":5`, `"worker_id":6`, 1), 200, `{"worker_id":6,"ranks":1,"expires_in_seconds":20}`},
			{"POST", "/v1/workers", strings.Replace(body, `"block_size":4`, `"block_size":0`, 1), 400, "block_size"},
			{"POST", "/v1/workers", strings.Replace(body, `"ttl_seconds":20`, `"ttl_seconds":4000`, 1), 400, "ttl_seconds"},
			{"POST", "/v1/workers", `{"colour":1}`, 400, "colour"},
			{"POST", "/v1/workers", body + body, 400, "something follows"},
			{"POST", "/v1/workers", `{"model":"` + strings.Repeat("x", maxRegistrationBody) + `"}`, 413, "body"},
			{"DELETE", "/v1/workers?worker_id=6", "", 200, `{"worker_id":6}`},
			{"DELETE", "/v1/workers?worker_id=6", "", 404, "worker_id"},
			{"DELETE", "/v1/workers", "", 400, "worker_id"},
			{"GET", "/v1/agents", "", 200, "[]"},
		} {
			answer := call(t, h, c.method, c.path, "", c.body)
			if got := text(t, answer); answer.StatusCode != c.status || !strings.Contains(got, c.want) {
				t.Errorf("%s %s %.80s: %d %s, want %d %s", c.method, c.path, c.body, answer.StatusCode, got, c.status, c.want)
			}
			synctest.Wait()
		}
		pool := kvevent.LoadReport{PublisherID: 3, Owner: kv.PoolOwner(77), Pool: kvevent.PoolLoad{ReadQueue: 4}}
		worker := kvevent.LoadReport{PublisherID: 4, Owner: workerOwner(5), Worker: kvevent.WorkerLoad{Running: 2}}
		b.send(Frame{Kind: FrameLoad, Data: kvevent.AppendLoadReport(nil, &pool)}, Frame{Kind: FrameLoad, Data: kvevent.AppendLoadReport(nil, &worker)},
			Frame{Kind: FrameLoad, Data: []byte("nonsense")})
		b.pass(3 * time.Second)
		var got []workerAnswer
		if err := json.Unmarshal([]byte(text(t, call(t, h, "GET", "/v1/workers", "", ""))), &got); err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[0].Source != "http" || !got[0].Silent || got[0].Endpoint != "http://e:1" || got[0].DeviceBlocks != 100 ||
			got[0].Load == nil || got[0].Load.Running != 2 || got[0].Load.AgeSeconds != 3 || got[0].PoolLoad == nil || got[0].PoolLoad.ReadQueue != 4 {
			t.Errorf("workers %+v", got)
		}
		shown := text(t, call(t, h, "GET", "/metrics", "", ""))
		for _, want := range []string{
			`blockyard_router_load{kind="read_queue",owner="pool 77"} 4`, `blockyard_router_load{kind="running_requests",owner="worker 5/0"} 2`,
			`blockyard_router_load_age_seconds{owner="pool 77"} 3`, `blockyard_router_load_reports_undecodable_total 1`,
			`blockyard_router_registered_over_http 1`, `blockyard_router_registrations_refused_total 2`,
		} {
			if !strings.Contains(shown, want+"\n") {
				t.Errorf("metrics lack %q", want)
			}
		}
		b.pass(time.Minute)
		if len(b.router.Loads()) != 0 {
			t.Error("loads of a minute ago are still shown")
		}
	})
}

// TestWithoutARegistryNobodyRegisters: the calls are not there.
func TestWithoutARegistryNobodyRegisters(t *testing.T) {
	onBench(t, Options{}, func(b *bench) {
		for _, h := range []http.Handler{b.router.Handler(), b.router.ControlHandler()} {
			if r := call(t, h, "POST", "/v1/workers", "", "{}"); r.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("status %d", r.StatusCode)
			}
		}
	})
}

// TestRegistryFollowsTheAgentsOfItsFile: the file's agents and those of the options
// are listened to, and those that leave the file are not.
func TestRegistryFollowsTheAgentsOfItsFile(t *testing.T) {
	a := newHTTPAgent(t)
	a.publisher(11, workerOwner(1), 0).add(kvevent.Stored, kv.TierDevice, promptTokens(1), 0)
	file := filepath.Join(t.TempDir(), "workers.json")
	writeFile(t, file, `{"agents":["`+a.server.URL+`"]}`)
	h, err := ConnectHTTP(HTTPOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	g, err := NewRegistry(RegistryOptions{File: file, HTTP: h, Poll: 5 * time.Millisecond}, h)
	if err != nil {
		t.Fatal(err)
	}
	r := runRouter(t, Options{FeedTimeout: 3 * time.Second}, g)
	eventually(t, "the file's agent followed", func() bool { return deviceHits(r, promptTokens(1)) == 1 && r.Quality() == QualityExact })
	writeFile(t, file, `{"agents":[]}`)
	eventually(t, "forgotten", func() bool { return r.Stats().Workers == 0 })
}
