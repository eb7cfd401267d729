package registry_test

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
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	httpsource "github.com/blockyard-ai/blockyard/router/source/http"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestRegisteredWorkersAreCandidatesWithoutHits: requests can go to them, they never
// have a block, and a renewal keeps them.
func TestRegisteredWorkersAreCandidatesWithoutHits(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, r *registry.Source) {
		g := routertest.SomeWorker(5)
		g.Ranks = 2
		if err := r.Register(g, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		b.Pass(time.Second)
		b.ExpectWorkers("registered", "5/0 http, 5/1 http")
		if q := b.Router.Quality(); q != feed.Fallback {
			t.Errorf("quality %s: nothing is known of any cache", q)
		}
		if m := b.Best(sourcetest.Tokens(1)); m.Worker.ID != 5 || m.Hits.Total() != 0 {
			t.Errorf("match %+v", m)
		}
		p := b.Publisher(11, sourcetest.WorkerOwner(1), 0)
		b.Send(p.Announce(), p.Store(kv.TierDevice, sourcetest.Tokens(1, 2)))
		b.Expect("one worker has events", sourcetest.Tokens(1, 2), 1, 2, feed.Exact)
		b.Pass(8 * time.Second)
		b.Send(p.Announce())
		g.Ranks = 1
		if err := r.Register(g, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		b.Pass(5 * time.Second)
		b.Send(p.Announce())
		b.ExpectWorkers("renewed with one rank less", "1/0 agent, 5/0 http")
		b.Pass(7 * time.Second)
		b.ExpectWorkers("not renewed", "1/0 agent")
		if s := r.Counters(); s.Expired != 1 || s.Registrations != 2 || s.FromHTTP != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestPublisherWinsOverRegistration: whoever has events speaks for its worker, and the
// registration holds again when it has gone or fallen silent, but not in an outage.
func TestPublisherWinsOverRegistration(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, r *registry.Source) {
		if err := r.Register(routertest.SomeWorker(5), time.Hour); err != nil {
			t.Fatal(err)
		}
		b.Pass(2 * time.Second)
		b.ExpectWorkers("alone", "5/0 http")
		p := b.Publisher(11, sourcetest.WorkerOwner(5), 0)
		b.Send(p.Announce(), p.Store(kv.TierDevice, sourcetest.Tokens(1, 2)), p.Announce())
		for range 20 {
			b.Pass(time.Second)
			b.Send(p.Announce())
		}
		b.ExpectWorkers("its agent speaks", "5/0 agent")
		b.Expect("with its blocks", sourcetest.Tokens(1, 2), 5, 2, feed.Exact)
		b.Send(source.Frame{Kind: source.FrameDisconnected})
		b.Pass(time.Minute)
		b.ExpectWorkers("in an outage", "5/0 agent")
		b.Expect("in an outage", sourcetest.Tokens(1, 2), 5, 2, feed.Degraded)
		b.Send(source.Frame{Kind: source.FrameConnected}, p.Announce())
		b.Expect("after it", sourcetest.Tokens(1, 2), 5, 2, feed.Exact)
		b.Pass(20 * time.Second)
		b.ExpectWorkers("silent for too long", "5/0 http")
		if m := b.Best(sourcetest.Tokens(1, 2)); m.Hits.Total() != 0 {
			t.Errorf("match %+v: what nobody speaks for is not known", m)
		}
		q := b.Publisher(12, sourcetest.WorkerOwner(5), 0)
		b.Send(q.Announce(), q.Store(kv.TierDevice, sourcetest.Tokens(3)), q.Announce())
		b.ExpectWorkers("back under another id", "5/0 agent")
		b.Send(q.Goodbye())
		b.Pass(2 * time.Second)
		b.ExpectWorkers("said goodbye", "5/0 http")
		if !r.Unregister(5) || r.Unregister(5) {
			t.Error("a registration ends once")
		}
		b.Pass(2 * time.Second)
		b.ExpectWorkers("unregistered", "")
		if s := b.Router.Stats().Feeds; s.Refused != 0 || s.Divergences != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestQueriesGoWhereThePublisherIs: a gap is repaired through the registry.
func TestQueriesGoWhereThePublisherIs(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, r *registry.Source) {
		p := b.Publisher(11, sourcetest.WorkerOwner(1), 0)
		p.Store(kv.TierDevice, sourcetest.Tokens(1, 2)) // lost
		b.Send(p.Announce())
		b.Expect("by a dump", sourcetest.Tokens(1, 2), 1, 2, feed.Exact)
		if _, err := r.Query(t.Context(), 12, kvevent.QueryRequest{}); err == nil {
			t.Error("a query of nobody was answered")
		}
	})
}

// TestRegistrationsThatDoNotFitAreRefused: model and block size are the cluster's, and
// the file's workers are the file's.
func TestRegistrationsThatDoNotFitAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "workers.json")
	routertest.WriteFile(t, file, `{"workers":[{"worker_id":9,"model":"m","block_size":4}]}`)
	routertest.OnRegistry(t, registry.Options{File: file}, func(b *routertest.Bench, r *registry.Source) {
		b.Pass(time.Second)
		b.ExpectWorkers("from the file", "9/0 file")
		for want, change := range map[string]func(*registry.Registration){
			"model":                                 func(g *registry.Registration) { g.Model = "" },
			"worker_id: 0":                          func(g *registry.Registration) { g.WorkerID = 0 },
			"worker_id: 9 is already registered by": func(g *registry.Registration) { g.WorkerID = 9 },
			"block_size: 0":                         func(g *registry.Registration) { g.BlockSize = 0 },
			"ranks: 1025":                           func(g *registry.Registration) { g.Ranks = 1025 },
			"endpoint":                              func(g *registry.Registration) { g.Endpoint = "nowhere" },
			"a URL with credentials":                func(g *registry.Registration) { g.Endpoint = "http://u:hunter2@e:1" },
			"namespace":                             func(g *registry.Registration) { g.Namespace = "12" },
			"has a control character":               func(g *registry.Registration) { g.Model = "m\x1b[2J" },
			"model: 1025 bytes, want 1 to":          func(g *registry.Registration) { g.Model = strings.Repeat("x", 1025) },
		} {
			g := routertest.SomeWorker(5)
			change(g)
			if err := r.Register(g, time.Minute); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %s", err, want)
			}
		}
		if err := r.Register(routertest.SomeWorker(5), time.Millisecond); err == nil || !strings.Contains(err.Error(), "ttl_seconds") {
			t.Errorf("error %v, want ttl_seconds", err)
		}
		if r.Unregister(9) {
			t.Error("the file's worker was unregistered")
		}
		if s := r.Counters(); s.Refusals != 11 || s.Registrations != 0 || s.FromFile != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestFileIsFollowed: a change is taken over within a poll, and one that is wrong
// changes nothing.
func TestFileIsFollowed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "workers.json")
	const worker = `{"worker_id":%d,"ranks":%d,"model":"m","block_size":4,"pool":77}`
	routertest.WriteFile(t, file, fmt.Sprintf(`{"workers":[`+worker+`]}`, 9, 2))
	routertest.OnRegistry(t, registry.Options{File: file}, func(b *routertest.Bench, r *registry.Source) {
		b.Pass(time.Second)
		b.ExpectWorkers("at first", "9/0 file, 9/1 file")
		routertest.WriteFile(t, file, fmt.Sprintf(`{"workers":[`+worker+`,`+worker+`]}`, 9, 1, 10, 1))
		b.Pass(3 * time.Second)
		b.ExpectWorkers("changed", "9/0 file, 10/0 file")
		routertest.WriteFile(t, file, `{"workers":[{"worker_id":0}], "and": 1}`)
		b.Pass(10 * time.Second)
		b.ExpectWorkers("wrong", "9/0 file, 10/0 file")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		b.Pass(10 * time.Second)
		b.ExpectWorkers("missing", "9/0 file, 10/0 file")
		routertest.WriteFile(t, file, `{}`)
		b.Pass(3 * time.Second)
		b.ExpectWorkers("empty", "")
		if s := r.Counters(); s.FileReads != 3 || s.FileErrors != 2 {
			t.Errorf("stats %+v, want 3 files taken over and 2 not, each told once", s)
		}
	})
}

func TestWorkersFileErrorsNameTheField(t *testing.T) {
	worker := `{"worker_id":9,"model":"m","block_size":4}`
	for text, want := range map[string]string{
		`[]`:                              "want an object, got array",
		`{"agents":["x"]}`:                "agents[0]",
		`{"agents":["http://a:1"]}`:       "does not follow agents over HTTP",
		`{"workers":[{}]}`:                "workers[0].worker_id",
		`{"workers":[` + worker + `]} {}`: "something follows",
		`{"workers":[` + worker + `,` + worker + `]}`:                            "workers[1].worker_id: 9 occurs twice",
		`{"workers":[` + worker + `,{"worker_id":1,"model":"","block_size":4}]}`: "workers[1].model",
		`{"workers":[{"worker_id":9,"colour":4}]}`:                               "colour",
		`{"workers":[{"worker_id":-9}]}`:                                         "worker_id",
		`{"workers"`:                                                             "not a whole JSON value",
	} {
		file := filepath.Join(t.TempDir(), "workers.json")
		routertest.WriteFile(t, file, text)
		g, err := registry.New(registry.Options{File: file})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", text, err, want)
		}
		if g != nil {
			g.Close()
		}
	}
	if _, err := registry.New(registry.Options{File: filepath.Join(t.TempDir(), "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := registry.New(registry.Options{Poll: -1}); err == nil {
		t.Error("a negative poll was accepted")
	}
}

// TestRegistryFollowsTheAgentsOfItsFile: the file's agents and those of the options
// are listened to, and those that leave the file are not.
func TestRegistryFollowsTheAgentsOfItsFile(t *testing.T) {
	a := sourcetest.NewAgent(t)
	a.Publisher(11, sourcetest.WorkerOwner(1), 0).Add(kvevent.Stored, kv.TierDevice, sourcetest.Tokens(1), 0)
	file := filepath.Join(t.TempDir(), "workers.json")
	routertest.WriteFile(t, file, `{"agents":["`+a.Server.URL+`"]}`)
	h, err := httpsource.Connect(httpsource.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	g, err := registry.New(registry.Options{File: file, HTTP: h, Poll: 5 * time.Millisecond}, h)
	if err != nil {
		t.Fatal(err)
	}
	r := routertest.RunRouter(t, router.Options{FeedTimeout: 3 * time.Second}, g)
	sourcetest.Eventually(t, "the file's agent followed", func() bool {
		return routertest.DeviceHits(r, sourcetest.Tokens(1)) == 1 && r.Quality() == feed.Exact
	})
	routertest.WriteFile(t, file, `{"agents":[]}`)
	sourcetest.Eventually(t, "forgotten", func() bool { return r.Stats().Workers == 0 })
}
