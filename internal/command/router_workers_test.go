package command

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

// TestWorkerFlagsJoinAgentsAndFile: both lists of agents are followed, and a bad value
// names its place.
func TestWorkerFlagsJoinAgentsAndFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "workers.json")
	if err := os.WriteFile(file, []byte(`{"agents":["http://127.0.0.1:2"],"workers":[{"worker_id":5,"model":"m","block_size":16}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	f := workerFlags{Agents: []string{"http://127.0.0.1:1"}, WorkersFile: file}
	if none := (&workerFlags{}); none.sources() || !f.sources() {
		t.Error("what counts as a source of workers is wrong")
	}
	joined, closeAll, err := f.join(zap.NewNop(), true, nil)
	if err != nil {
		t.Fatal(err)
	}
	agents := joined.Agents()
	if len(agents) != 2 || agents[0].URL != "http://127.0.0.1:1" || agents[1].URL != "http://127.0.0.1:2" {
		t.Errorf("agents %+v", agents)
	}
	if s := joined.Counters(); s.FromFile != 1 {
		t.Errorf("stats %+v", s)
	}
	if err := closeAll(); err != nil {
		t.Error(err)
	}
	for want, f := range map[string]workerFlags{
		"agents[0]":    {Agents: []string{"node-1:9400"}},
		"workers file": {WorkersFile: file + ".none"},
	} {
		if _, _, err := f.join(zap.NewNop(), true, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// TestRouterStartsWithoutASource: with events and without, it serves the workers that
// register, and says in its log that it has no source.
func TestRouterStartsWithoutASource(t *testing.T) {
	withoutSettings(t)
	for _, name := range []string{"NATS_SERVER", "BLOCKYARD_NATS"} {
		t.Setenv(name, "")
	}
	for _, args := range [][]string{{"--no-router-kv-events"}, {"--router-reset-states"}, {"--overlap-score-credit=0"}} {
		core, logs := observer.New(zap.WarnLevel)
		c := settle(t, args...)
		sources, err := c.openSources(zap.New(core))
		if err != nil {
			t.Errorf("%v: %v", args, err)
			continue
		}
		if logs.FilterMessageSnippet("the router has no source of workers").Len() != 1 {
			t.Errorf("%v: logged %v", args, logs.All())
		}
		r, err := router.New(c.options("", zap.NewNop()), sources.Source)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = r.Run(ctx) })
		if err := sources.Register(&registry.Registration{WorkerID: 5, Model: "m", BlockSize: 16}, time.Minute); err != nil {
			t.Error(err)
		}
		waittest.Until(t, "the router is ready", func() bool { return r.Ready() == nil })
		if m, err := r.FindBestMatch(ctx, &router.Request{Tokens: []uint32{1}}); err != nil || m.Worker.ID != 5 {
			t.Errorf("%v: %+v, %v", args, m.Worker, err)
		}
		cancel()
		running.Wait()
		if err := sources.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestWithoutEventsNoSourceIsAskedForThem: the flags that say so reach NATS and Dynamo's
// workers, which then need no NATS.
func TestWithoutEventsNoSourceIsAskedForThem(t *testing.T) {
	withoutSettings(t)
	for args, want := range map[string]struct{ noEvents, jetStream bool }{
		"":                      {false, false},
		"--durable-kv-events":   {false, true},
		"--no-router-kv-events": {true, false},
		"--load-aware":          {true, false},
		"--overlap-score-credit=0 --durable-kv-events": {true, false},
	} {
		c := settle(t, append(strings.Fields(args), "--nats=nats://127.0.0.1:1")...)
		if o, err := c.natsOptions(zap.NewNop()); err != nil || o.NoEvents != want.noEvents || o.JetStream != want.jetStream || o.Validate() != nil {
			t.Errorf("%q: %+v, %v", args, o, err)
		}
	}
	t.Setenv("NATS_SERVER", "")
	c := settle(t, "--no-router-kv-events", "--dynamo-endpoint=dynamo.backend.generate", "--dynamo-discovery="+t.TempDir())
	sources, err := c.openSources(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := sources.Close(); err != nil {
		t.Error(err)
	}
}
