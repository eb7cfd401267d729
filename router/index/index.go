package index

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// Index maps blocks to the owners that hold them. Make one with New.
type Index struct {
	options Options

	// Readers use the fields down to arena. Each is atomic, or immutable once
	// readers can reach it.
	readers readers
	view    atomic.Pointer[view]
	runs    *runs.Tree
	arena   *runs.Arena // of runs

	// mu serializes changes. Readers never take it.
	mu        sync.Mutex
	directory *runs.Directory
	// dense is true while the directory is to hold every block. listing is the next
	// run whose blocks are to be entered, None when all are.
	dense   bool
	listing runs.ID
	search  searchCost
	orphans orphans
	limbo   limbo

	// owners is indexed by ownerID. The first owner stands for nobody.
	owners     []*owner
	freeOwners []ownerID
	ids        map[kv.Owner]ownerID
	latest     *owner
	members    []member
	// sweeping are retired owner ids that still have entries. Readers ignore those
	// entries. shrinking are runs to check for unused blocks.
	sweeping  []ownerID
	shrinking []runs.ID
	// clockHand is the run that eviction looked at last. Eviction spares the run
	// protected.
	clockHand, protected runs.ID
	// batch is memory of removeScattered.
	batch []scattered
	// readersStalled is true after a wait for readers has timed out, until the
	// readers have left.
	readersStalled bool
	// replacing is true while a dump is applied. The blocks of a dump may come in
	// any order.
	replacing bool

	// applied counts blocks stored and removed. resident counts the blocks in runs.
	// pairs and lost count (block, tier) pairs of all owners.
	applied, resident, pairs, lost int
	listBytes                      int64
	counts                         Counts
}

// New returns an empty index. The error names the option that is out of range.
func New(o Options) (*Index, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	x := &Index{
		options:   o,
		runs:      runs.NewTree(chunkShift(o.MaxBytes, runs.UnitBytes, 11), chunkShift(o.MaxBytes, runs.RunBytes, 11)),
		directory: runs.NewDirectory(0),
		orphans:   newOrphans(),
		owners:    make([]*owner, 1),
		ids:       make(map[kv.Owner]ownerID),
	}
	x.arena = x.runs.Arena
	x.publishView()
	if x.runs.Take(x.mayGrow) != runs.Root {
		return nil, fmt.Errorf("index max bytes: %d has no room for a first run", o.MaxBytes)
	}
	return x, nil
}

// Apply applies one event, which is borrowed. Duplicate stores and unknown removals
// are counted and change nothing. Over the budget Apply evicts blocks that no
// prompt has touched lately. Evicted blocks stay in their owner's digest. The error
// is ErrFull when there are too many owners, or names the invalid field. After an
// error the event has no effect.
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
	x.maintain()
	return nil
}

// limboBatch is how many retired pieces, runs and owners the writer gathers before it
// checks whether readers are left.
const limboBatch = 16

// maintain does a bounded part of the work that changes leave behind: it shrinks runs,
// sweeps owners that left, frees retired memory and evicts.
func (x *Index) maintain() {
	x.shrinkSome()
	x.list()
	if len(x.sweeping) > 0 {
		x.sweep(sweepRuns)
	}
	if x.limbo.len() >= limboBatch {
		x.freeRetired()
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

// hashAt returns the sequence hash of an existing block. The hash of a stand-in is
// that of the unknown parent. The root's is 0.
func (x *Index) hashAt(p runs.Place) kv.SequenceHash {
	if s := x.runs.Side(p.Run); s.StandIn {
		return x.orphans.hashOf[p.Run]
	}
	if s := x.runs.Head(p.Run).Storage(); p.Pos < s.Blocks() {
		return kv.SequenceHash(x.arena.Hashes(s)[p.Pos])
	}
	return 0
}

// Options bound an Index. The zero value is ready for use.
type Options struct {
	// MaxBytes bounds the memory; 0 means 8 GiB. Over the bound the index evicts
	// blocks that no prompt has touched lately, from the ends of sequences. About
	// two fifths are kept free for a directory of every block, which is needed when
	// events no longer come in runs. The overflow of entries is outside the plan:
	// where very many owners hold the same blocks the index may exceed the bound by
	// up to a quarter, otherwise by a few percent.
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
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultBytes
	}
	if o.MaxOwners == 0 {
		o.MaxOwners = 1 << 16
	}
	if o.MaxParked == 0 {
		o.MaxParked = 1 << 16
	}
	return o
}

// ErrFull says that there are already Options.MaxOwners owners. Stats.Refused
// counts the refusals.
var ErrFull = errors.New("index is full")

// Replace makes events everything that an owner holds. All events are stores of
// that owner, in any order. Readers see the old blocks until one moment and the new
// blocks from then on. The error is ErrFull or names the invalid field, and then
// nothing has changed.
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
	x.dropParked()
	fresh.publishHeld()
	x.replaceOwner(old, fresh)
	x.maintain()
	return nil
}

// Stats is a snapshot of an index. A triple is an owner, a block and a tier. The metric
// names follow "blockyard_router_".
type Stats struct {
	Memberships int `metric:"index_memberships" help:"Triples of owner, block and tier in the index."`
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
	LostNow int   `metric:"index_lost" help:"Triples that owners hold and that the index has no room for."`
	Dense   bool  `metric:"index_dense" help:"1 while the index finds every block by its hash."`
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
	DenseSwitches uint64 `metric:"index_dense_switches" help:"Changes between finding every block by its hash and only some."`
}

// Stats returns a snapshot. Changes during the call may affect Blocks.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	s := Stats{
		Memberships: x.pairs, Owners: len(x.ids), Workers: len(x.members),
		Runs: x.runs.Live - 1 - len(x.orphans.byHash), Parked: len(x.orphans.byHash),
		Bytes: x.bytes(), Idle: x.idleBytes(), Limbo: int64(x.limbo.units) * runs.UnitBytes,
		LostNow: x.lost, Dense: x.dense, Counts: x.counts,
	}
	gone := make([]bool, len(x.owners))
	for i, o := range x.owners {
		gone[i] = o == nil || o.gone
	}
	x.mu.Unlock()
	s.Blocks = x.countBlocks(gone)
	return s
}

// countBlocks returns how many blocks at least one owner holds. gone[n] says that owner
// n has left, so that its entries do not count. An owner with a number beyond gone came
// after gone was built and counts. countBlocks takes no lock: it registers as a reader,
// and the writer reuses no memory that it may reach.
func (x *Index) countBlocks(gone []bool) int {
	reading := x.readers.enter(x.readers.shard())
	defer reading.Add(-1)
	n := 0
	for _, c := range x.runs.Chunks() {
		for i := range c.Heads {
			var held runs.Mask
			note := func(e entry) {
				if e != 0 && (int(e.owner()) >= len(gone) || !gone[e.owner()]) {
					held = held.Or(e.mask())
				}
			}
			h := &c.Heads[i]
			for j := range h.Entries {
				note(entry(h.Entries[j].Load()))
			}
			if h.Flags.Load()&runs.FlagMore != 0 {
				for o := c.Over[i].Load(); o != nil; o = o.Next.Load() {
					for j := range o.Entries {
						note(entry(o.Entries[j].Load()))
					}
				}
			}
			n += held.Count()
		}
	}
	return n
}

// Lost returns the number of (block, tier) pairs that an owner holds according to its
// events and that the index lacks: evicted, refused, or in conflict with another block.
// While Lost is not 0, Match may report less than the owner holds.
func (x *Index) Lost(who kv.Owner) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if id, ok := x.ids[who]; ok {
		return x.owners[id].lostPairs
	}
	return 0
}

// Digest returns the sum of kv.Digest over everything that an owner holds
// according to its events, and the number of (block, tier) pairs in the sum. Lost pairs are included.
// Both are 0 for an unknown owner.
func (x *Index) Digest(who kv.Owner) (sum, pairs uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if id, ok := x.ids[who]; ok {
		o := x.owners[id]
		return o.digest + o.lostDigest, o.pairs + o.lostPairs
	}
	return 0, 0
}

// Held returns the number of (block, tier) pairs that a member holds according to its events
// itself, lost ones included. m may be a list of this index or of another index,
// and at is the member's number in m. Held returns 0 for an unknown worker. Held
// takes no lock.
func (x *Index) Held(m *Members, at int) uint64 {
	v, w := x.view.Load(), m.List[at].Worker
	if at >= len(v.holders) || v.members.List[at].Worker != w {
		var known bool
		if at, known = v.members.Find(w); !known {
			return 0
		}
	}
	return v.holders[at].held.Load()
}
