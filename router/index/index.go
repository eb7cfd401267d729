package index

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Options bound an Index. The zero value is ready for use.
type Options struct {
	// MaxMemberships is how many (owner, block) pairs are kept; 0 means 1<<26.
	// One takes 24 bytes, and a block's first one about 20 more. Replace needs
	// room for the old and the new blocks of its owner at once.
	MaxMemberships int
	// MaxOwners is how many workers and pools are kept; 0 means 1<<16.
	MaxOwners int
}

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	if o.MaxMemberships < 0 || o.MaxMemberships > math.MaxUint32-1 {
		return fmt.Errorf("index max memberships: %d is not in 0..%d", o.MaxMemberships, uint32(math.MaxUint32-1))
	}
	if o.MaxOwners < 0 || o.MaxOwners > maxOwners/2 {
		return fmt.Errorf("index max owners: %d is not in 0..%d", o.MaxOwners, maxOwners/2)
	}
	return nil
}

// ErrFull is returned when an option's bound is reached. What did not fit is
// not in the index and is counted in Stats.Refused.
var ErrFull = errors.New("index is full")

// writeBatch is how many blocks a writer changes before it lets readers in.
const writeBatch = 512

// Index maps blocks to the owners that hold them. Make one with New.
type Index struct {
	maxOwners int

	// writer serializes Apply, Replace, RemoveOwner and SetMember. It is taken
	// before mu and held across the batches of one change.
	writer sync.Mutex

	mu    sync.RWMutex
	table table
	// owners is indexed by ownerID; owners[noOwner] stands for nobody.
	owners  []ownerState
	freeIDs []ownerID
	ids     map[kv.Owner]ownerID
	// members are the known workers in the order of kv.Worker.
	members []member
	stats   Stats
}

// ownerState is what is kept per owner.
type ownerState struct {
	owner kv.Owner
	// first heads the list of the owner's cells.
	first cellRef
	// digest is the sum of kv.Digest over the pairs (block, tier) held, and
	// pairs their number.
	digest, pairs uint64
	// known is set while a worker is to be reported by Match.
	known bool
	// members counts the known workers of a pool.
	members int
}

// member is a known worker and whose blocks count for it.
type member struct {
	worker    kv.Worker
	own, pool ownerID
}

// New returns an empty index.
func New(o Options) (*Index, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	limit := o.MaxMemberships
	if limit == 0 {
		limit = 1 << 26
	}
	x := &Index{
		maxOwners: o.MaxOwners,
		table:     newTable(limit),
		owners:    make([]ownerState, 1),
		ids:       make(map[kv.Owner]ownerID),
	}
	if x.maxOwners == 0 {
		x.maxOwners = 1 << 16
	}
	return x, nil
}

// Apply makes one event part of the index. Blocks stored twice and blocks
// removed that were not there are counted and change nothing. The error is
// ErrFull, or says which field of the event is not valid; then the event, or
// the rest of it after ErrFull, has no effect.
func (x *Index) Apply(e *kvevent.RouterEvent) error {
	if err := check(e); err != nil {
		return err
	}
	x.writer.Lock()
	defer x.writer.Unlock()
	if e.Kind == kvevent.Cleared {
		x.clear(e.Owner)
		return nil
	}
	id, err := x.openOwner(e.Owner)
	if err != nil {
		return err
	}
	err = x.change(id, e)
	x.mu.Lock()
	x.releaseLocked(id)
	x.mu.Unlock()
	return err
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

// change applies a stored or removed event to owner id, in batches.
func (x *Index) change(id ownerID, e *kvevent.RouterEvent) error {
	for blocks := range slices.Chunk(e.Blocks, writeBatch) {
		if e.Kind != kvevent.Stored {
			break
		}
		x.mu.Lock()
		refused := 0
		for i := range blocks {
			if !x.storeLocked(id, blocks[i].Hash, e.Tier) {
				refused++
			}
		}
		x.stats.Refused += uint64(refused)
		x.mu.Unlock()
		if refused > 0 {
			return fmt.Errorf("event %d of %s: %w", e.ID, e.Owner, ErrFull)
		}
	}
	for hashes := range slices.Chunk(e.Removed, writeBatch) {
		if e.Kind != kvevent.Removed {
			break
		}
		x.mu.Lock()
		for _, h := range hashes {
			x.removeLocked(id, h, e.Tier)
		}
		x.mu.Unlock()
	}
	return nil
}

func (x *Index) storeLocked(id ownerID, h kv.SequenceHash, t kv.Tier) bool {
	o := &x.owners[id]
	if r := x.table.find(h, id); r != noCell {
		c := x.table.at(r)
		if c.tiers().Has(t) {
			x.stats.DuplicateStores++
			return true
		}
		c.packed = pack(id, c.tiers().With(t))
	} else {
		first := x.table.insert(h, id, kv.TierMask(0).With(t), o.first)
		if first == noCell {
			return false
		}
		o.first = first
	}
	o.digest += kv.Digest(h, t)
	o.pairs++
	return true
}

func (x *Index) removeLocked(id ownerID, h kv.SequenceHash, t kv.Tier) {
	o := &x.owners[id]
	r := x.table.find(h, id)
	if r == noCell || !x.table.at(r).tiers().Has(t) {
		x.stats.UnknownRemovals++
		return
	}
	c := x.table.at(r)
	if left := c.tiers().Without(t); left != 0 {
		c.packed = pack(id, left)
	} else {
		o.first = x.table.remove(r, o.first)
	}
	o.digest -= kv.Digest(h, t)
	o.pairs--
}
