package workers_test

import (
	"errors"
	"fmt"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/router/workers"
)

// TestFactsOfVLLM: models, block size, blocks, events and routes are read from the server.
func TestFactsOfVLLM(t *testing.T) {
	v := newVLLM(t, func(v *vllm) {
		v.models = []string{card("tiny", "", 4096), card("alias", "", 4096), card("sql", "tiny", 0)}
		v.metrics = fmt.Sprintf(cacheConfigLine, 16, "True", 2, 1024) + fmt.Sprintf(cacheConfigLine, 16, "True", 3, 1024)
		v.render = 400
	})
	r := &recorder{}
	d := run(t, workers.Options{Specs: []workers.Spec{spec(t, v.URL+",taint=a100,role=decode")}, Registry: r})
	eventually(t, d, "the server is ready", func() bool { return ready(d, 1) })
	w := d.Workers()[0]
	u, _ := url.Parse(v.URL)
	want := workers.Facts{
		Engine: "vllm", Version: "0.32.0", BlockSize: 16, DeviceBlocks: 512, Render: true, Tokenize: true, PrefixCaching: workers.Yes,
		Events: []workers.EventSource{{Endpoint: "tcp://" + u.Hostname() + ":20381", Replay: "tcp://" + u.Hostname() + ":20481", Topic: "kv-events"}},
	}
	if diff := cmp.Diff(want, w.Facts); diff != "" {
		t.Error(diff)
	}
	if w.FirstRank != 2 || w.Ranks != 2 || w.Role != workers.RoleDecode || w.Model != "tiny" || w.Source != workers.FromFlag || w.URL != v.URL {
		t.Errorf("worker %+v", w)
	}
	for name, want := range map[string]workers.Served{
		"":      {Model: "tiny", MaxLen: 4096},
		"tiny":  {Model: "tiny", MaxLen: 4096},
		"alias": {Model: "tiny", MaxLen: 4096},
		"sql":   {Model: "tiny", LoRA: "sql", MaxLen: 4096},
	} {
		if got, err := d.Resolve(name); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", name, got, err, want)
		}
	}
	if _, err := d.Resolve("other"); !errors.Is(err, workers.ErrUnknownModel) {
		t.Errorf("unknown model: %v", err)
	}
	eventually(t, d, "the server is registered", func() bool { return len(r.all()) == 1 })
	g := r.all()[uint64(w.ID)]
	if g.Model != "tiny" || g.BlockSize != 16 || g.Ranks != 2 || g.FirstRank != 2 || g.DeviceBlocks != 512 || g.Endpoint != v.URL || len(g.Taints) != 1 {
		t.Errorf("registration %+v", g)
	}
	if all := d.Tokenizers("sql"); len(all) != 1 || all[0] != w {
		t.Errorf("tokenizers %v", all)
	}
	if d.AllowedFor("tiny") != nil {
		t.Error("every worker of the router is ready, but not every one is allowed")
	}
}

// TestADeadEngineGetsNothing: a server whose engine died, and one that went away, leave the
// choice and the registry, and come back.
func TestADeadEngineGetsNothing(t *testing.T) {
	a, b := newVLLM(t, nil), newVLLM(t, nil)
	r := &recorder{}
	d := run(t, workers.Options{Specs: []workers.Spec{spec(t, a.URL), spec(t, b.URL)}, Registry: r})
	eventually(t, d, "both are ready", func() bool { return ready(d, 2) && len(r.all()) == 2 })
	a.set(func() { a.health = 503 })
	eventually(t, d, "one is ready", func() bool { return ready(d, 1) && len(r.all()) == 1 })
	if n := ids(d.AllowedFor("tiny")); n != 1 {
		t.Errorf("%d workers are allowed, want 1", n)
	}
	b.Close()
	eventually(t, d, "none is ready", func() bool { return ready(d, 0) && len(r.all()) == 0 })
	if _, err := d.Resolve("tiny"); !errors.Is(err, workers.ErrNoWorkers) {
		t.Errorf("model of unhealthy workers: %v", err)
	}
	if d.AllowedFor("tiny") == nil {
		t.Error("no worker is ready, but every one is allowed")
	}
	a.set(func() { a.health = 200 })
	eventually(t, d, "one is back", func() bool {
		return ready(d, 1) && len(r.all()) == 1 && d.Workers()[0].Problem != d.Workers()[1].Problem
	})
}
