package index_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// TestModelOfScatteredChanges: blocks that come and go one at a time, anywhere, are
// as exact as those that come and go in runs, and make the index find every block
// by its hash; streams of runs make it give that up again.
func TestModelOfScatteredChanges(t *testing.T) {
	c := &crowd{t: t, x: newIndex(t, index.Options{}), twin: newTwin(), rng: rand.New(rand.NewPCG(4, 2))}
	for n := range 20 {
		c.prompts = append(c.prompts, series(10_000*(n+1), 1000))
	}
	for id := range 3 {
		w := worker(id+1, 0)
		join(t, c.x, w)
		c.twin.member(w, 0, true)
		c.owners = append(c.owners, kv.WorkerOwner(w))
		for _, p := range c.prompts {
			c.apply(c.twin.unsaid(stored(c.owners[id], kv.TierDevice, p, 0, len(p))))
		}
	}
	scatter := func(steps int) {
		for i := range steps {
			o, p := c.owners[c.rng.IntN(3)], c.prompts[c.rng.IntN(20)]
			at := c.rng.IntN(len(p))
			if c.rng.IntN(2) == 0 {
				c.apply(c.twin.unsaid(removed(o, kv.TierDevice, p, at, at+1)))
			} else {
				c.apply(c.twin.unsaid(stored(o, kv.TierDevice, p, at, at+1)))
			}
			if i%100 == 0 {
				c.checkExactly()
			}
		}
	}
	scatter(4000)
	if s := c.x.Stats(); !s.Dense {
		t.Errorf("after scattered changes: %+v, want it dense", s)
	}
	other := series(1<<40, 128)
	whole := stored(c.owners[0], kv.TierDevice, other, 0, len(other))
	gone := removed(c.owners[0], kv.TierDevice, other, 0, len(other))
	for range 80_000 {
		apply(t, c.x, whole, gone)
	}
	// One more search makes the index weigh what searches are worth.
	scatter(400)
	if s := c.x.Stats(); s.Dense {
		t.Errorf("after many runs: %+v, want it sparse", s)
	}
	scatter(400)
}

// checkExactly compares answers and digests where there is room for everything.
func (c *crowd) checkExactly() {
	c.t.Helper()
	prompt := c.prompts[c.rng.IntN(len(c.prompts))]
	for _, r := range []index.Reading{index.Continuation, index.Union} {
		same(c.t, "match", match(c.t, c.x, prompt, r), c.twin.match(prompt, r))
	}
	c.check()
}

// TestModelOfCutPrompts: of many prompts the ends come and go, the same or
// others, whole or in part, so that the index gives up what nobody holds of its runs
// and grows them again.
func TestModelOfCutPrompts(t *testing.T) {
	c := &crowd{t: t, x: newIndex(t, index.Options{}), twin: newTwin(), rng: rand.New(rand.NewPCG(8, 2))}
	for id := range 2 {
		w := worker(id+1, 0)
		join(t, c.x, w)
		c.twin.member(w, 0, true)
		c.owners = append(c.owners, kv.WorkerOwner(w))
	}
	for n := range 800 {
		c.prompts = append(c.prompts, series(1000*(n+1), 1+c.rng.IntN(300)))
	}
	for round := range 4 {
		for i, p := range c.prompts {
			o := c.owners[c.rng.IntN(2)]
			cut := c.rng.IntN(len(p))
			c.apply(c.twin.unsaid(removed(o, kv.TierDevice, p, cut, len(p))))
			if c.rng.IntN(2) == 0 {
				p = slices.Concat(p[:cut], series(1<<40+1000*(i+1)+300*round, 1+c.rng.IntN(200)))
				c.prompts[i] = p
			}
			c.apply(c.twin.unsaid(stored(o, kv.TierDevice, p, 0, cut+c.rng.IntN(len(p)-cut+1))))
			if i%10 == 0 {
				same(t, "match", match(t, c.x, p, index.Continuation), c.twin.match(p, index.Continuation))
			}
		}
		c.checkExactly()
		got, _ := dumpOf(t, c.x)
		sameDump(t, "dump", got, c.twin.dump())
	}
}

// TestHolesThatComeAndGoLeaveNothing: a block that is removed from the middle and
// stored again, over and over, does not make the index larger or slower.
func TestHolesThatComeAndGoLeaveNothing(t *testing.T) {
	x := newIndex(t, index.Options{})
	prompt := series(1, 110)
	w := worker(1, 0)
	join(t, x, w)
	o := kv.WorkerOwner(w)
	apply(t, x, stored(o, kv.TierDevice, prompt, 0, 110))
	open, fill := removed(o, kv.TierDevice, prompt, 40, 60), stored(o, kv.TierDevice, prompt, 40, 60)
	before := x.Stats().Bytes
	for range 20_000 {
		apply(t, x, open, fill)
	}
	same(t, "match", match(t, x, prompt, index.Continuation), map[kv.Worker]index.Hits{w: device(110)})
	if after := x.Stats().Bytes; after > before+4096 {
		t.Errorf("%d bytes after 20,000 holes, %d before", after, before)
	}
}
