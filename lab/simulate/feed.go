package simulate

import (
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
)

// feed tells the routers what a tier stores and removes.
type feed struct {
	c     *cluster
	owner kv.Owner
	tier  kv.Tier
}

var _ engine.Sink = (*feed)(nil)

// Stored implements engine.Sink.
func (f *feed) Stored(parent kv.SequenceHash, blocks []kvevent.StoredBlock) {
	f.tell(kvevent.RouterEvent{Kind: kvevent.Stored, Parent: parent, HasParent: parent != 0, Blocks: blocks})
}

// Removed implements engine.Sink.
func (f *feed) Removed(hashes []kv.SequenceHash) {
	f.tell(kvevent.RouterEvent{Kind: kvevent.Removed, Removed: hashes})
}

func (f *feed) tell(e kvevent.RouterEvent) {
	c := f.c
	c.numbers[f.owner]++
	e.Owner, e.Tier, e.ID = f.owner, f.tier, c.numbers[f.owner]
	if c.scenario.Lag == 0 {
		c.apply(&e)
		return
	}
	e.Blocks, e.Removed = slices.Clone(e.Blocks), slices.Clone(e.Removed)
	c.clock.After(c.scenario.Lag, func() { c.apply(&e) })
}

// apply applies an event to the indexes of all routers, or to each its part.
func (c *cluster) apply(e *kvevent.RouterEvent) {
	if e.Owner.Kind == kv.OwnerWorker {
		if w := c.engines[e.Owner.Worker()]; w == nil || w.Dead() {
			return
		}
	}
	apply := func(router int, e *kvevent.RouterEvent) {
		if err := c.routers[router].index.Apply(e); err != nil {
			c.fail(fmt.Errorf("event of %v: %w", e.Owner, err))
		}
	}
	if c.parts != nil {
		c.parts.Split(e, apply)
		return
	}
	for i := range c.routers {
		apply(i, e)
	}
}
