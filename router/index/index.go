package index

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index/groups"
	"github.com/blockyard-ai/blockyard/router/index/merge"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// Index maps blocks to the owners that hold them. Make one with New.
type Index struct {
	options Options

	// Readers use the fields down to arena. Each is atomic, or immutable once
	// readers can reach it.
	readers runs.Readers
	view    atomic.Pointer[view]
	runs    *runs.Tree
	arena   *runs.Arena  // of runs
	sparse  groups.Table // blocks of other KV groups than the primary one

	// mu serializes changes. Readers never take it.
	mu        sync.Mutex
	directory *runs.Directory
	// denseDirectory is true while the directory is meant to have every block. A directory that
	// becomes dense is filled run by run: nextUnlisted is the next run to enter, None when
	// every run is entered.
	denseDirectory bool
	nextUnlisted   runs.ID
	search         searchCost
	unknownParents runs.UnknownParents
	limbo          limbo

	// owners is indexed by ownerID. Element 0 is nil, because ownerID 0 is noOwner.
	owners      []*owner
	freeOwners  []ownerID
	ids         map[kv.Owner]ownerID
	latestOwner *owner
	members     []member
	// hybrids has the KV groups of the workers that have any.
	hybrids map[kv.Worker]*groups.Model
	// ownersToSweep are retired owner ids that still have entries. Readers ignore those
	// entries. runsToShrink are runs to check for unused blocks.
	ownersToSweep []ownerID
	runsToShrink  []runs.ID
	// clockHand is the run that eviction looked at last. Eviction skips protectedRun, which
	// the current change is about to extend.
	clockHand, protectedRun runs.ID
	// removalBatch, named and guesses are scratch memory of removeUnordered.
	removalBatch []scattered
	named        runs.Named
	guesses      []runs.Place
	// merger is scratch memory of ApplyAll.
	merger merge.Merger
	// unmaintained counts blocks of events since the last maintain.
	unmaintained int
	// readersStalled is true after a wait for readers has timed out, until those readers
	// have left.
	readersStalled bool
	// replacing is true while a dump is applied. The blocks of a dump may come in any order.
	replacing bool

	// changedBlocks counts blocks stored and removed. blocksInRuns counts the blocks in runs.
	// heldPairs and lostPairs count (block, tier) pairs of all owners.
	// sparsePairs counts the held pairs of other KV groups than the primary one.
	changedBlocks, blocksInRuns, heldPairs, lostPairs, sparsePairs int
	ownerRunsBytes                                                 int64
	counts                                                         Counts
}

// New returns an empty index. The error names the option that is out of range.
func New(o Options) (*Index, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	x := &Index{
		options:        o,
		runs:           runs.NewTree(runs.ChunkShift(o.MaxBytes, runs.UnitBytes), runs.ChunkShift(o.MaxBytes, runs.RunBytes)),
		directory:      runs.NewDirectory(0),
		unknownParents: runs.NewUnknownParents(),
		owners:         make([]*owner, 1), // ownerID 0 is noOwner
		ids:            make(map[kv.Owner]ownerID),
		hybrids:        make(map[kv.Worker]*groups.Model),
	}
	x.arena = x.runs.Arena
	x.publishView()
	if x.runs.Take(x.mayGrow) != runs.Root { // the first run taken is the root
		return nil, fmt.Errorf("index max bytes: %d has no room for a first run", o.MaxBytes)
	}
	return x, nil
}

// Apply applies one stored, removed or cleared event. The caller keeps e, and Apply
// retains no part of e. Storing a held block and removing an unknown block change
// nothing but a counter in Stats. An index over Options.MaxBytes evicts blocks that no
// prompt has touched lately. An evicted block stays in its owner's digest.
//
// The error is ErrFull when the event's owner would be one owner too many, or names the
// invalid field. After an error the event has no effect. Apply may be called from any
// goroutine.
func (x *Index) Apply(e *kvevent.RouterEvent) error {
	if err := check(e); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.apply(e)
}

// ApplyAll is Apply of all events of a message. It merges small events (package merge), so that many of them
// take less time than one by one. Readers may see removals before stores. It returns the number of refused
// events, which have no effect, and the last error.
func (x *Index) ApplyAll(events []kvevent.RouterEvent) (refused int, err error) {
	for n := 0; len(events) > 0; events = events[n:] {
		var failed error
		if n, failed = x.applySome(events); failed != nil {
			refused, err = refused+n, failed
		}
	}
	return refused, err
}

// applySome applies leading events together and returns their number. After an error none of them has an effect.
func (x *Index) applySome(events []kvevent.RouterEvent) (n int, err error) {
	if err := check(&events[0]); err != nil {
		return 1, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.knows(events[0].Owner) { // an event that adds the owner may be refused, and no other one
		return 1, x.apply(&events[0])
	}
	n = x.merger.Take(events) // these are valid as the first one is
	defer x.merger.Release()
	for i := range x.merger.Events {
		if err := x.apply(&x.merger.Events[i]); err != nil {
			return n, err
		}
	}
	return n, nil
}

// apply is Apply of a valid event. The caller holds x.mu.
func (x *Index) apply(e *kvevent.RouterEvent) error {
	switch e.Kind {
	case kvevent.Cleared:
		x.clear(e.Owner)
	case kvevent.Stored:
		o, err := x.open(e.Owner)
		if err != nil {
			return err
		}
		x.store(o, e)
		o.publishTotal()
		x.forgetIfUnused(o)
	case kvevent.Removed:
		if !x.knows(e.Owner) { // an unknown owner holds nothing, and open would add that owner
			x.counts.UnknownRemovals += uint64(len(e.Removed))
			break
		}
		o, _ := x.open(e.Owner) // a known owner opens without error
		if e.Group != 0 {
			x.applySparse(o, e)
		} else {
			x.remove(o, e.Tier, e.Removed)
		}
		o.publishTotal()
		x.forgetIfUnused(o)
	}
	// Small changes share the work of one maintain.
	if x.unmaintained += e.NumBlocks(); x.unmaintained >= maintainBlocks || e.Kind == kvevent.Cleared {
		x.maintain()
	}
	return nil
}

// check reports the first invalid field of an event.
func check(e *kvevent.RouterEvent) error {
	if e.Owner.Kind != kv.OwnerWorker && e.Owner.Kind != kv.OwnerPool {
		return fmt.Errorf("event %d owner: kind %d is neither worker nor pool", e.ID, e.Owner.Kind)
	}
	if e.Tier >= kv.NumTiers {
		return fmt.Errorf("event %d tier: %d is not in 0..%d", e.ID, e.Tier, kv.NumTiers-1)
	}
	if e.Group > groups.MaxGroup {
		return fmt.Errorf("event %d group: %d is not in 0..%d", e.ID, e.Group, groups.MaxGroup)
	}
	switch e.Kind {
	case kvevent.Stored, kvevent.Removed, kvevent.Cleared:
		return nil
	}
	return fmt.Errorf("event %d kind: %d is not stored, removed or cleared", e.ID, e.Kind)
}

// hashAt returns the sequence hash of the block at p. For a stand-in, a run in place of an
// unknown parent, it returns the hash of that parent. For the root and for a place without
// a block it returns 0. The caller holds x.mu.
func (x *Index) hashAt(p runs.Place) kv.SequenceHash {
	if s := x.runs.WriterState(p.Run); s.StandIn {
		return x.unknownParents.HashOf(p.Run)
	}
	if s := x.runs.Head(p.Run).Storage(); p.Pos < s.Blocks() {
		return kv.SequenceHash(x.arena.Hashes(s)[p.Pos])
	}
	return 0
}

// Options bound an Index. The zero value is ready for use.
type Options struct {
	// MaxBytes bounds the memory; 0 means 8 GiB. Over the bound the index evicts blocks that
	// no prompt has touched lately, from the ends of sequences. About two fifths are kept
	// free for a directory of every block, which is needed when events no longer come in
	// runs. The overflow of entries is outside the plan: where very many owners hold the same
	// blocks the index may exceed the bound by up to a quarter, otherwise by a few percent.
	MaxBytes int64
	// MaxOwners bounds the workers and pools; 0 means 1<<16.
	MaxOwners int
	// MaxParked bounds the unknown parents that blocks wait for; 0 means 1<<16.
	MaxParked int
}

const (
	minBytes     = 128 << 10
	defaultBytes = 8 << 30
	maxOwnersCap = 1 << 24
	maxParkedCap = 1 << 28
)

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	if o.MaxBytes != 0 && o.MaxBytes < minBytes {
		return fmt.Errorf("index max bytes: %d is neither 0 nor at least %d", o.MaxBytes, minBytes)
	}
	if o.MaxOwners < 0 || o.MaxOwners > maxOwnersCap {
		return fmt.Errorf("index max owners: %d is not in 0..%d", o.MaxOwners, maxOwnersCap)
	}
	if o.MaxParked < 0 || o.MaxParked > maxParkedCap {
		return fmt.Errorf("index max parked: %d is not in 0..%d", o.MaxParked, maxParkedCap)
	}
	return nil
}

func (o Options) withDefaults() Options {
	o.MaxBytes = cmp.Or(o.MaxBytes, defaultBytes)
	o.MaxOwners = cmp.Or(o.MaxOwners, 1<<16)
	o.MaxParked = cmp.Or(o.MaxParked, 1<<16)
	return o
}

// ErrFull says that there are already Options.MaxOwners owners. Stats.Refused
// counts the refusals.
var ErrFull = errors.New("index is full")

// Replace replaces all blocks of an owner by those of a dump: events that store blocks of this
// owner, in any order. Readers see the old blocks until one moment, and from then on the new.
// The error is ErrFull or names the invalid field, and then nothing has changed.
func (x *Index) Replace(who kv.Owner, events []kvevent.RouterEvent) error {
	for i := range events {
		if err := check(&events[i]); err != nil {
			return err
		}
		if events[i].Owner != who || events[i].Kind != kvevent.Stored {
			return fmt.Errorf("dump of %s: event %d is %s of %s", who, i, events[i].Kind, events[i].Owner)
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	old, err := x.open(who)
	if err != nil {
		return err
	}
	// The new blocks gather under an id that no reader knows yet.
	fresh := x.newOwner(who)
	x.replacing = true
	for i := range events {
		x.store(fresh, &events[i])
		x.maintain()
	}
	x.replacing = false
	x.dropParked() // a dump may park more blocks than MaxParked allows afterwards
	fresh.publishTotal()
	x.replaceOwner(old, fresh)
	x.maintain()
	return nil
}

// Stats is a snapshot of an index. A triple is an owner, a block and a tier. The metric
// names follow "blockyard_router_".
type Stats struct {
	Memberships int `metric:"index_memberships" help:"Triples of owner, block and tier in the index."`
	// SparsePairs are not in Memberships.
	SparsePairs int `metric:"index_group_memberships" help:"Triples of owner, block and tier of other KV groups than the primary one in the index."`
	Blocks      int `metric:"index_blocks" help:"Distinct blocks in the index."`
	// Owners are workers and pools. Workers are those that Match may return.
	Owners  int `metric:"-"`
	Workers int `metric:"-"`
	Runs    int `metric:"index_runs" help:"Runs of blocks in the index."`
	Parked  int `metric:"index_parked" help:"Unknown parents that blocks in the index wait for."`
	// Bytes stays below Options.MaxBytes. Idle and Limbo are parts of it.
	Bytes   int64 `metric:"index_bytes" help:"Memory of the index, in bytes."`
	Idle    int64 `metric:"index_idle_bytes" help:"Part of the index's memory that is free for new blocks."`
	Limbo   int64 `metric:"index_limbo_bytes" help:"Part of the index's memory that waits for readers to finish."`
	LostNow int   `metric:"index_lost" help:"Triples of owner, block and tier that the index has no room for."`
	Dense   bool  `metric:"index_dense" help:"1 while the directory of the index has every block, not only some."`
	Counts
}

// Counts are the counters of an index.
type Counts struct {
	DuplicateStores uint64 `metric:"index_duplicate_stores" help:"Stores of triples that the index already had."`
	UnknownRemovals uint64 `metric:"index_unknown_removals" help:"Removals of triples that the index did not have."`
	Refused         uint64 `metric:"index_refused" help:"Owners that did not fit into the index."`
	Evicted         uint64 `metric:"index_evicted" help:"Triples evicted from the index for lack of room."`
	Lost            uint64 `metric:"index_not_stored" help:"Triples that were never stored for lack of room."`
	// ParkedDropped is a part of Lost.
	ParkedDropped uint64 `metric:"index_parked_dropped" help:"Triples not stored because too many unknown parents were pending."`
	Conflicts     uint64 `metric:"index_conflicts" help:"Stores that give a known block another hash or parent."`
	Spliced       uint64 `metric:"index_spliced" help:"Runs of blocks that were stored before their parent."`
	Scans         uint64 `metric:"index_scans" help:"Searches for a block outside the run where it was expected."`
	ScannedBlocks uint64 `metric:"index_scanned_blocks" help:"Blocks compared in such searches."`
	// DenseSwitches grows when Scans make the directory dense, and when it is sparse again.
	DenseSwitches uint64 `metric:"index_dense_switches" help:"Switches between a directory of every block and one of some blocks."`
}

// Stats returns a snapshot. Changes during the call may affect Blocks.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	s := Stats{
		Memberships: x.heldPairs, SparsePairs: x.sparsePairs, Owners: len(x.ids), Workers: len(x.members),
		Runs: x.runs.Live - 1 - x.unknownParents.Len(), Parked: x.unknownParents.Len(),
		Bytes: x.bytes(), Idle: x.idleBytes(), Limbo: int64(x.limbo.units) * runs.UnitBytes,
		LostNow: x.lostPairs, Dense: x.denseDirectory, Counts: x.counts,
	}
	retired := make([]bool, len(x.owners))
	for id, o := range x.owners {
		retired[id] = o == nil || o.retired
	}
	x.mu.Unlock()
	s.Blocks = x.countBlocks(retired)
	return s
}

// countBlocks returns the number of distinct blocks that at least one live owner holds. An
// entry says which blocks of a run, a row of blocks, an owner holds. countBlocks takes no
// lock: it registers as a reader, so that the writer does not reuse the memory of a run.
//
// retired is indexed by ownerID. A true element says that the owner has left and that its
// remaining entries do not count. An owner whose id is not in retired was added after the
// caller made retired, so its entries count.
func (x *Index) countBlocks(retired []bool) int {
	activeReaders := x.readers.Enter(x.readers.NextShard())
	defer activeReaders.Add(-1)
	blocks := 0
	for _, chunk := range x.runs.Chunks() {
		for i := range chunk.Heads {
			var covered runs.Mask // the blocks of this run that a live owner holds
			addEntry := func(e entry) {
				if e == 0 {
					return
				}
				id := int(e.owner())
				if id >= len(retired) || !retired[id] {
					covered = covered.Or(e.mask())
				}
			}
			head := &chunk.Heads[i]
			for j := range head.Entries {
				addEntry(entry(head.Entries[j].Load()))
			}
			if head.Flags.Load()&runs.FlagOverflow != 0 { // more entries than the head holds
				for node := chunk.Overflow[i].Load(); node != nil; node = node.Next.Load() {
					for j := range node.Entries {
						addEntry(entry(node.Entries[j].Load()))
					}
				}
			}
			blocks += covered.Count()
		}
	}
	return blocks
}
