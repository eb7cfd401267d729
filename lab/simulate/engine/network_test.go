package engine

import (
	"math"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestAnEngineReceivesWhatAnotherComputed: the blocks come at the speed of the network, one prompt after the other,
// and the engine that computed them keeps them until then. The last token is computed again.
func TestAnEngineReceivesWhatAnotherComputed(t *testing.T) {
	from := newBench(t, 0, 0)
	to, err := New(from.clock, NewNode(from.clock, NodeOptions{ID: 8, BlockBytes: 1 << 20, DiskBytes: 1}), Options{ID: kv.Worker{ID: 2}, Steps: DefaultSteps(),
		Speed: 1, BlockSize: block, Blocks: 100, Budget: 256, MaxRunning: 16, HostBytes: 1, NetworkBytes: 10 << 20, Device: &mirror{t, make(map[kv.SequenceHash]bool)}})
	if err != nil {
		t.Fatal(err)
	}
	from.engine.options.NetworkBytes = 20 << 20
	var sent, first [2]time.Duration
	var answers [2]*Request
	for i := range 2 {
		r := request(i+1, 0, 321, 1) // 20 blocks and a token
		r.Held = true
		r.Last = func() {
			sent[i] = from.clock.Now()
			a := request(i+1, 0, 321, 10)
			a.Source, a.First = r, func() { first[i] = from.clock.Now() }
			answers[i] = a
			from.clock.After(0, func() { to.Submit(a) })
		}
		from.engine.Submit(r)
	}
	from.clock.Run(time.Second)
	if used := from.engine.device.used(); sent[1] == 0 || used < 0.39 {
		t.Errorf("%.2f of the device is in use while blocks are sent, want 0.40; prompts ended at %v", used, sent)
	}
	from.clock.Run(math.MaxInt64)
	for i, least := range []time.Duration{2 * time.Second, 4 * time.Second} { // 20 MiB each
		if took := first[i] - sent[0]; took < least || took > least+200*time.Millisecond {
			t.Errorf("answer %d has its first token after %v, want a little more than %v", i, took, least)
		}
		if want := (Served{Network: 320, Computed: 1}); answers[i].Cached != want {
			t.Errorf("answer %d: %+v, want %+v", i, answers[i].Cached, want)
		}
	}
	if to.node.Moved.Network != 40<<20 {
		t.Errorf("%v bytes over the network", to.node.Moved.Network)
	}
	for _, e := range []*Engine{from.engine, to} {
		if d := e.device; d.anonymous != 0 || d.unreferenced != d.blocks.n {
			t.Errorf("worker %v: %d anonymous blocks, %d of %d unreferenced", e.ID(), d.anonymous, d.unreferenced, d.blocks.n)
		}
	}
}

// TestADeadEngineGivesTheBlocksBack: a request that is lost on its way holds no blocks of its source.
func TestADeadEngineGivesTheBlocksBack(t *testing.T) {
	for _, before := range []bool{false, true} { // the engine dies before or while it receives
		from, to := newBench(t, 0, 0), newBench(t, 0, 0)
		to.engine.clock, to.node.clock = from.clock, from.clock
		from.engine.options.NetworkBytes, to.engine.options.NetworkBytes = 1<<20, 1<<20
		lost := false
		r := request(1, 0, 321, 1)
		r.Held = true
		r.Last = func() {
			a := request(1, 0, 321, 10)
			a.Source, a.Lost = r, func() { lost = true }
			from.clock.After(0, func() {
				if before {
					to.engine.Kill()
				}
				to.engine.Submit(a)
				to.engine.Kill()
			})
		}
		from.engine.Submit(r)
		from.clock.Run(math.MaxInt64)
		if d := from.engine.device; !lost || d.unreferenced != d.blocks.n {
			t.Errorf("killed before: %v; lost: %v, %d of %d blocks unreferenced", before, lost, d.unreferenced, d.blocks.n)
		}
	}
}
