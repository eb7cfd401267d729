package workers_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// TestServersWithEventsAreFollowed: a server that publishes events is followed while it is
// ready, and not registered.
func TestServersWithEventsAreFollowed(t *testing.T) {
	v := newVLLM(t, nil)
	f, r := &follower{}, &recorder{}
	s := spec(t, v.URL+",taint=a100")
	d := run(t, workers.Options{Specs: []workers.Spec{s}, Registry: r, Follower: f, ProbeEvery: 10 * time.Millisecond})
	eventually(t, d, "the server is followed", func() bool { return ready(d, 1) && len(f.all()) == 1 })
	w := d.Workers()[0]
	taints, err := kvevent.NewTaints([]string{"a100"})
	if err != nil {
		t.Fatal(err)
	}
	want := source.Engine{
		Worker: w.ID, Model: "tiny", BlockSize: 32,
		Card:  kvevent.ModelCard{Endpoint: v.URL, Ranks: 1, DeviceBlocks: 512, Taints: taints},
		Ranks: []source.EngineRank{{Events: w.Facts.Events[0].Endpoint, Replay: w.Facts.Events[0].Replay, Topic: "kv-events"}},
	}
	if diff := cmp.Diff(want, f.all()[0]); diff != "" {
		t.Error(diff)
	}
	if len(r.all()) != 0 {
		t.Errorf("a followed server is registered: %v", r.all())
	}
	v.set(func() { v.health = 503 })
	eventually(t, d, "a dead engine is not followed", func() bool { return len(f.all()) == 0 })
	v.set(func() { v.health = 200 })
	eventually(t, d, "the engine is followed again", func() bool { return len(f.all()) == 1 })
	if err := d.Drain(w.ID, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, d, "a draining server is not followed", func() bool { return len(f.all()) == 0 && len(r.all()) == 0 })
}

// TestRanksWithoutEventsAreRegistered: the registration speaks for the ranks that publish
// nothing, and for a server that cannot be followed.
func TestRanksWithoutEventsAreRegistered(t *testing.T) {
	two := newVLLM(t, func(v *vllm) {
		v.metrics = fmt.Sprintf(cacheConfigLine, 32, "True", 0, 512) + fmt.Sprintf(cacheConfigLine, 32, "True", 1, 512)
	})
	f, r := &follower{}, &recorder{}
	d := run(t, workers.Options{Specs: []workers.Spec{spec(t, two.URL)}, Registry: r, Follower: f})
	eventually(t, d, "both are told", func() bool { return len(f.all()) == 1 && len(r.all()) == 1 })
	if e := f.all()[0]; len(e.Ranks) != 1 || e.Ranks[0].Rank != 0 {
		t.Errorf("followed %+v, want rank 0", e)
	}

	one := newVLLM(t, nil)
	failing, registered := &follower{fail: errors.New("too many")}, &recorder{}
	d = run(t, workers.Options{Specs: []workers.Spec{spec(t, one.URL)}, Registry: registered, Follower: failing})
	eventually(t, d, "the server is registered", func() bool { return len(registered.all()) == 1 })
}

// TestGivenEndpointsWin: events= of a specification is believed before the server.
func TestGivenEndpointsWin(t *testing.T) {
	v := newVLLM(t, nil)
	f := &follower{}
	d := run(t, workers.Options{Specs: []workers.Spec{spec(t, v.URL+",events=tcp://b:7000,replay=tcp://b:8000")}, Follower: f})
	eventually(t, d, "the server is followed", func() bool { return ready(d, 1) && len(f.all()) == 1 })
	if got := f.all()[0].Ranks[0]; got.Events != "tcp://b:7000" || got.Replay != "tcp://b:8000" {
		t.Errorf("followed %+v", got)
	}
}

// TestABusyServerIsFollowedOn: a server that leaves questions without an answer is still
// followed as before.
func TestABusyServerIsFollowedOn(t *testing.T) {
	v := newVLLM(t, nil)
	f := &follower{}
	d := run(t, workers.Options{Specs: []workers.Spec{spec(t, v.URL)}, Follower: f, ProbeEvery: 5 * time.Millisecond})
	eventually(t, d, "the server is followed", func() bool { return ready(d, 1) && len(f.all()) == 1 })
	before := f.all()[0]
	v.set(func() { v.metrics, v.sources, v.health = "", "not JSON", 503 })
	eventually(t, d, "the server is not ready", func() bool { return ready(d, 0) })
	v.set(func() { v.health = 200 })
	eventually(t, d, "the server is followed again", func() bool { return len(f.all()) == 1 })
	if diff := cmp.Diff(before, f.all()[0]); diff != "" {
		t.Error(diff)
	}
}
