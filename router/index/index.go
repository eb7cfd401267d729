package index

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Index maps blocks to the owners that hold them. Make one with New.
type Index struct {
	options Options

	// What readers use: all of it is read and written with atomic operations, or
	// is immutable once it can be reached.
	readers  readers
	view     atomic.Pointer[view]
	arena    *arena
	runs     *runTable
	children atomic.Pointer[childTable]

	// mu is the writer's. Readers never take it.
	mu          sync.Mutex
	childCounts childCounts
	directory   *directory
	// dense is set while every block is to be in the directory; listing is the next
	// run whose blocks are to be entered, noRun when all are.
	dense   bool
	listing runID
	search  searchCost
	orphans orphans
	limbo   limbo

	// owners is indexed by ownerID; the first stands for nobody.
	owners     []*owner
	freeOwners []ownerID
	ids        map[kv.Owner]ownerID
	latest     *owner
	members    []member
	// sweeping are the ids given up whose entries are still there; no reader
	// looks at them any more. shrinking are the runs to look at for unused blocks.
	sweeping  []ownerID
	shrinking []runID
	// hand is the clock's, and pinned the run that it must leave alone.
	hand, pinned runID
	// crowded is set when a run was given more slots than it seems to need, and
	// batch is what removeScattered works with.
	crowded bool
	batch   []scattered
	// tired is set while waiting for readers has been in vain.
	tired bool
	// replacing is set while a dump is applied, whose blocks may come in any
	// order.
	replacing bool

	// applied counts blocks stored and removed, resident the blocks in runs, pairs
	// and lost the (block, tier) pairs of all owners.
	applied, resident, pairs, lost int
	overflowBytes, listBytes       int64
	counts                         Counts
}

// New returns an empty index.
func New(o Options) (*Index, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	x := &Index{
		options:   o,
		arena:     newArena(chunkShift(o.MaxBytes, unitBytes, 11)),
		runs:      newRunTable(chunkShift(o.MaxBytes, runBytes, 11)),
		directory: newDirectory(0),
		orphans:   newOrphans(),
		owners:    make([]*owner, 1),
		ids:       make(map[kv.Owner]ownerID),
	}
	x.children.Store(newChildTable(6))
	x.publishView()
	if x.runs.take(x.mayGrow) != rootRun {
		return nil, fmt.Errorf("index max bytes: %d has no room for a first run", o.MaxBytes)
	}
	return x, nil
}

// Apply makes one event part of the index. The event is borrowed. Blocks stored
// twice and blocks removed that were not there are counted and change nothing.
// Over the budget blocks that were not asked for lately leave; what the owner
// was told to hold is still in its digest. The error is ErrFull when there are
// too many owners, or says which field of the event is not valid; then the event
// has no effect.
func (x *Index) Apply(e *kvevent.RouterEvent) error {
	if err := check(e); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch e.Kind {
	case kvevent.Cleared:
		x.clear(e.Owner)
	case kvevent.Stored:
		o, err := x.open(e.Owner)
		if err != nil {
			return err
		}
		x.store(o, e)
		o.publishHeld()
		x.release(o)
	case kvevent.Removed:
		if _, ok := x.ids[e.Owner]; !ok {
			x.counts.UnknownRemovals += uint64(len(e.Removed))
			break
		}
		o, _ := x.open(e.Owner)
		x.remove(o, e.Tier, e.Removed)
		o.publishHeld()
		x.release(o)
	}
	x.tidy()
	return nil
}

// limboBatch is how many unlinked things are gathered before the writer looks
// whether readers are gone.
const limboBatch = 16

// tidy does a bounded part of the work that changes leave behind.
func (x *Index) tidy() {
	x.shrinkSome()
	x.list()
	if len(x.sweeping) > 0 {
		x.sweep(sweepRuns)
	}
	if x.limbo.len() >= limboBatch {
		x.settle()
	}
	x.evict()
}

func check(e *kvevent.RouterEvent) error {
	if e.Owner.Kind != kv.OwnerWorker && e.Owner.Kind != kv.OwnerPool {
		return fmt.Errorf("event %d owner: kind %d is neither worker nor pool", e.ID, e.Owner.Kind)
	}
	if e.Tier >= kv.NumTiers {
		return fmt.Errorf("event %d tier: %d is not in 0..%d", e.ID, e.Tier, kv.NumTiers-1)
	}
	switch e.Kind {
	case kvevent.Stored, kvevent.Removed, kvevent.Cleared:
		return nil
	}
	return fmt.Errorf("event %d kind: %d is not stored, removed or cleared", e.ID, e.Kind)
}
