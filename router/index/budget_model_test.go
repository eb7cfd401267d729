package index_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// unsaid are the events of e that change something in the twin: publishers tell of
// each block once.
func (w *twin) unsaid(e kvevent.RouterEvent) []kvevent.RouterEvent {
	set := w.held[e.Owner]
	if e.Kind == kvevent.Removed {
		e.Removed = slices.DeleteFunc(e.Removed, func(h kv.SequenceHash) bool { return !set[pair{h, e.Tier}] })
		return []kvevent.RouterEvent{e}
	}
	var out []kvevent.RouterEvent
	run := e
	run.Blocks = nil
	for _, b := range e.Blocks {
		if !set[pair{b.Hash, e.Tier}] {
			run.Blocks = append(run.Blocks, b)
			continue
		}
		if len(run.Blocks) > 0 {
			out = append(out, run)
		}
		run.Parent, run.HasParent, run.Blocks = b.Hash, true, nil
	}
	if len(run.Blocks) > 0 {
		out = append(out, run)
	}
	return out
}

// crowd is more than an index has room for, and the index.
type crowd struct {
	t       *testing.T
	x       *index.Index
	twin    *twin
	rng     *rand.Rand
	prompts [][]kv.LocalHash
	owners  []kv.Owner
}

func (c *crowd) step() {
	o := c.owners[c.rng.IntN(len(c.owners))]
	tier := kv.TierDevice
	if o.Kind == kv.OwnerPool {
		tier = kv.Tiers[1+c.rng.IntN(3)]
	}
	prompt := c.prompts[c.rng.IntN(len(c.prompts))]
	n := 1 + c.rng.IntN(len(prompt))
	switch kind := c.rng.IntN(100); {
	case kind < 60:
		for at := 0; at < n; at += 128 {
			c.apply(c.twin.unsaid(stored(o, tier, prompt, at, min(n, at+128))))
		}
	case kind < 96:
		c.apply(c.twin.unsaid(removed(o, tier, prompt, n-1, len(prompt))))
	case kind < 97:
		c.apply([]kvevent.RouterEvent{cleared(o)})
	case kind < 99:
		dump := []kvevent.RouterEvent{stored(o, tier, prompt, 0, n)}
		if err := c.x.Replace(o, dump); err != nil {
			c.t.Error(err)
		}
		c.twin.replace(o, dump)
	default:
		c.x.RemoveOwner(o)
		delete(c.twin.held, o)
	}
}

func (c *crowd) apply(events []kvevent.RouterEvent) {
	if _, err := c.x.ApplyAll(events); err != nil {
		c.t.Error(err)
	}
	for i := range events {
		c.twin.apply(&events[i])
	}
}

// check asks for a prompt. What is missing may end a walk earlier, tier by tier,
// and never carries one further.
func (c *crowd) check() {
	prompt := c.prompts[c.rng.IntN(len(c.prompts))]
	want := c.twin.match(prompt, index.Continuation)
	for w, got := range match(c.t, c.x, prompt, index.Continuation) {
		sum, bound := uint32(0), uint32(0)
		for _, t := range kv.Tiers {
			sum, bound = sum+got[t], bound+want[w][t]
			if sum > bound {
				c.t.Errorf("worker %s: %v of %d blocks, more than there are: %v", w, got, len(prompt), want[w])
			}
		}
	}
	union := c.twin.match(prompt, index.Union)
	for w, got := range match(c.t, c.x, prompt, index.Union) {
		if most := union[w]; got.Total() > most.Total() {
			c.t.Errorf("worker %s: union %v of %d blocks, more than there are: %v", w, got, len(prompt), most)
		}
	}
	for _, o := range c.owners {
		sum, pairs := c.x.Digest(o)
		if wantSum, wantPairs := c.twin.digest(o); sum != wantSum || pairs != wantPairs {
			c.t.Errorf("digest of %s: %x of %d pairs, want %x of %d", o, sum, pairs, wantSum, wantPairs)
		}
	}
}

// TestBudgetModel: with room for a fraction of what owners hold, the index keeps
// to its budget, credits nobody with more than he has, and still knows what
// everybody was told to hold.
func TestBudgetModel(t *testing.T) {
	for seed := range uint64(3) {
		const budget = 256 << 10
		c := &crowd{t: t, x: newIndex(t, index.Options{MaxBytes: budget}), twin: newTwin(), rng: rand.New(rand.NewPCG(seed, 1))}
		for n := range 60 {
			trunk := series(1, 300)
			c.prompts = append(c.prompts, slices.Concat(trunk[:c.rng.IntN(300)], series(10_000*(n+1), 1+c.rng.IntN(1500))))
		}
		for id := range 4 {
			w := worker(id+1, 0)
			if err := c.x.SetMember(w, 1, true); err != nil {
				t.Fatal(err)
			}
			c.twin.member(w, 1, true)
			c.owners = append(c.owners, kv.WorkerOwner(w))
		}
		c.owners = append(c.owners, kv.PoolOwner(1))
		for i := range 600 {
			c.step()
			if s := c.x.Stats(); s.Bytes > budget+budget/20 {
				t.Fatalf("step %d: %d bytes, budget %d", i, s.Bytes, budget)
			}
			if i%10 == 0 {
				c.check()
			}
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, i)
			}
		}
		if s := c.x.Stats(); s.Evicted == 0 {
			t.Errorf("nothing was evicted: %+v", s)
		}
	}
}

// TestWhatIsAskedForOutlivesWhatIsNot: while many times the budget passes through,
// prompts that requests ask for stay, and older ones that nobody asks for go.
func TestWhatIsAskedForOutlivesWhatIsNot(t *testing.T) {
	x := newIndex(t, index.Options{MaxBytes: 1 << 20})
	w := worker(1, 0)
	join(t, x, w)
	var asked, forgotten [][]kv.LocalHash
	for n := range 20 {
		asked = append(asked, series(1_000_000*(2*n+1), 300))
		forgotten = append(forgotten, series(1_000_000*(2*n+2), 300))
		apply(t, x, stored(kv.WorkerOwner(w), kv.TierDevice, asked[n], 0, 300), stored(kv.WorkerOwner(w), kv.TierDevice, forgotten[n], 0, 300))
	}
	left := func(prompts [][]kv.LocalHash) (blocks int) {
		for _, p := range prompts {
			blocks += int(match(t, x, p, index.Continuation)[w][kv.TierDevice])
		}
		return blocks
	}
	for n := range 3000 {
		apply(t, x, stored(kv.WorkerOwner(w), kv.TierDevice, series(1_000_000_000+1000*n, 100), 0, 100))
		left(asked)
	}
	if a, f := left(asked), left(forgotten); a < 20*300*8/10 || f > 20*300/10 {
		t.Errorf("%d of %d blocks are left that are asked for, %d of as many that are not", a, 20*300, f)
	}
}
