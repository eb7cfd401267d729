package router

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
