package blockmgr

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// recencyShift makes a record's recency coarse: it changes with every 1024th moment of
// the pool's clock, which is every 64th block that is stored, and its 32 bits last for
// 270 billion blocks.
const recencyShift = 10

// slot is what changes often about a slot; what describes its block is in the
// slot's record. No pointers: there may be millions.
type slot struct {
	generation uint64
	// tick is when the slot was last used, on the pool's clock.
	tick uint64
	// session is whom a granted slot belongs to, or who may still write into a
	// quarantined one.
	session SessionID
	entry   registry.ID
	// pins are held by sessions, holds by the manager's own work: sealing, the
	// write-behind, reads, lookups that have not answered yet, sessions of an
	// earlier agent.
	pins, holds uint32
	// priority is the block's; see policy.Evictor.
	priority uint32
	state    storage.State
	// active: counted in tier.active.
	active bool
	// ordered: known to the eviction order.
	ordered bool
	// queued: waits for or is in the write-behind.
	queued bool
	// deferred: in writes.deferred. wanted: the filter
	// wants the block on disk.
	deferred, wanted bool
	// attempts counts failed writes of the block to disk.
	attempts uint8
	// fromDisk: promoted, and no lookup has reported it since.
	fromDisk bool
	// unverified: found in host memory after a restart, and not compared with its
	// checksum since.
	unverified bool
	// lost: its block was dropped while somebody used the slot; it is free when
	// nobody does any more.
	lost bool
	// kept: held for a retention pin; see Pool.Keep.
	kept bool
	// untold: the sink has yet to be told of the block. inLater: the slot is in
	// announcement.later.
	untold  untold
	inLater bool
	// era is that of the tier when the block came in; see stale.
	era bool
}

// resident reports whether the slot's block can be served.
func (s *slot) resident() bool {
	return s.state == storage.StateSealed || s.state == storage.StateFilled
}

// part is one extent of a tier. Exactly one of host and disk is set.
type part struct {
	number uint32
	id     uint32
	recs   *storage.Section
	host   *extent.Host
	disk   *extent.Disk
	slots  []slot
	// free are the indices of the free slots, a stack.
	free []uint32
}

func (p *part) geometry() extent.Geometry {
	if p.host != nil {
		return p.host.Geometry()
	}
	return p.disk.Geometry()
}

func (p *part) path() string {
	if p.host != nil {
		return p.host.Path()
	}
	return p.disk.Path()
}

func (p *part) hostPart() storage.HostPart {
	return storage.HostPart{ID: p.id, Extent: p.host, Slots: p.recs}
}

func (p *part) diskPart() storage.DiskPart {
	return storage.DiskPart{ID: p.id, Extent: p.disk, Slots: p.recs}
}

// idle reports whether nobody uses or waits for any slot of the part, and if so
// the latest moment at which one of its blocks was used. A slot in quarantine that
// nobody holds has a bad medium; it goes with its extent.
func (p *part) idle() (lastUse uint64, ok bool) {
	for i := range p.slots {
		s := &p.slots[i]
		if s.pins+s.holds > 0 {
			return 0, false
		}
		switch s.state {
		case storage.StateFree, storage.StateSealed, storage.StateQuarantined:
		default:
			return 0, false
		}
		if s.entry != registry.None {
			lastUse = max(lastUse, s.tick)
		}
	}
	return lastUse, true
}

// tier is the slots of one pool in one tier. Its pool's mutex guards it.
type tier struct {
	level registry.Level
	kind  kv.Tier
	// ns is the namespace's index in the tier's slot table.
	ns uint32
	// parts are the extents by their number in a Ref; nil where one has gone. There
	// are at most maxParts.
	parts []*part
	live  int
	byID  map[uint32]*part
	// freeFrom: no part of a lower number has a free slot.
	freeFrom int
	order    policy.Evictor
	counts   [storage.NumStates]int
	capacity int
	active   int
	// pinned counts the slots that any session has pinned.
	pinned int
	// era changes with each reset.
	era bool
	// maxSlots bounds capacity; 0 is no bound but the tier's size.
	maxSlots uint64
	// full: no further extent could be had at the broker's turn fullAt. It is
	// worth another try at another turn, or at tryAgain: what a pool in use could
	// not give then it may give now.
	full     bool
	fullAt   uint64
	tryAgain time.Time
	// takes: another pool gave room for the newest host extent, and may give more.
	takes bool
}

func newTier(lv registry.Level, kind kv.Tier, ns uint32, maxSlots uint64) *tier {
	return &tier{level: lv, kind: kind, ns: ns, byID: map[uint32]*part{}, order: policy.NewLeafLRU(), maxSlots: maxSlots}
}

// add takes an extent in whose slots are all free, at the generations of their
// records.
func (t *tier) add(p *part) {
	t.install(p)
	n := p.geometry().Slots
	p.free = make([]uint32, 0, n)
	for i := n; i > 0; i-- {
		p.free = append(p.free, i-1)
	}
	for i := range p.slots {
		if r, err := p.recs.Get(uint32(i)); err == nil {
			p.slots[i].generation = r.Generation
		}
	}
	t.counts[storage.StateFree] += int(n)
	t.freeFrom = min(t.freeFrom, int(p.number))
}

// install gives an extent a number. Its slots are in no state yet: the caller
// counts each of them.
func (t *tier) install(p *part) {
	p.number = uint32(len(t.parts))
	for i, old := range t.parts {
		if old == nil {
			p.number = uint32(i)
			break
		}
	}
	if p.number == uint32(len(t.parts)) {
		t.parts = append(t.parts, nil)
	}
	t.parts[p.number] = p
	n := p.geometry().Slots
	p.slots = make([]slot, n)
	for i := range p.slots {
		p.slots[i].generation, p.slots[i].entry = 1, registry.None
	}
	t.byID[p.id] = p
	t.live++
	t.capacity += int(n)
	t.order.AddPart(p.number, n)
}

// remove takes an extent out, none of whose slots has a block.
func (t *tier) remove(p *part) {
	for i := range p.slots {
		s := &p.slots[i]
		if s.entry != registry.None || s.ordered {
			panic(fmt.Sprintf("BUG: %s slot %d of an extent that goes has a block", t.kind, i))
		}
		t.counts[s.state]--
	}
	t.order.RemovePart(p.number)
	t.parts[p.number] = nil
	t.live--
	t.capacity -= len(p.slots)
	delete(t.byID, p.id)
}

// slot is the state of slot ref.
func (t *tier) slot(ref registry.Ref) *slot { return &t.parts[ref.Part()].slots[ref.Slot()] }

// at finds the extent of a slot and its index in there.
func (t *tier) at(ref registry.Ref) (*part, uint32) { return t.parts[ref.Part()], ref.Slot() }

// each calls do for every slot.
func (t *tier) each(do func(registry.Ref, *slot)) {
	for _, p := range t.parts {
		if p == nil {
			continue
		}
		for i := range p.slots {
			do(registry.MakeRef(p.number, uint32(i)), &p.slots[i])
		}
	}
}

// name is the slot's name for callers.
func (t *tier) name(ref registry.Ref) Slot {
	p, i := t.at(ref)
	return Slot{Extent: p.id, Index: i, Generation: p.slots[i].generation}
}

// lookup finds the slot that a caller named; ok is false when there is none of
// that extent, index and generation.
func (t *tier) lookup(s Slot) (ref registry.Ref, ok bool) {
	p := t.byID[s.Extent]
	if p == nil || s.Index >= uint32(len(p.slots)) {
		return registry.NoRef, false
	}
	return registry.MakeRef(p.number, s.Index), p.slots[s.Index].generation == s.Generation
}

// record is the slot's record. The image is ours alone and was encoded here, so
// a damaged one is a broken invariant.
func (t *tier) record(ref registry.Ref) storage.Record {
	p, i := t.at(ref)
	r, err := p.recs.Get(i)
	if err != nil {
		panic(fmt.Sprintf("BUG: %s slot %d: %v", t.kind, ref, err))
	}
	return r
}

// put stores r as the slot's record, with what the slot itself knows.
func (t *tier) put(ref registry.Ref, r storage.Record) {
	p, i := t.at(ref)
	s := &p.slots[i]
	r.Namespace, r.Generation, r.State, r.Priority = t.ns, s.generation, s.state, s.priority
	r.Session, r.Recency = uint64(s.session), uint32(s.tick>>recencyShift)
	p.recs.Put(i, &r)
}

// setState moves the slot between the counters; the caller puts the record.
func (t *tier) setState(s *slot, to storage.State) {
	t.counts[s.state]--
	s.state = to
	t.counts[to]++
}

// settle brings the slot's place in the active count and in the eviction order
// up to date after a change of its state, pins, holds, tick, priority or
// children.
func (t *tier) settle(ref registry.Ref, s *slot, leaf bool) {
	active := s.resident() && s.pins+s.holds > 0
	if active != s.active {
		s.active = active
		if active {
			t.active++
		} else {
			t.active--
		}
	}
	switch {
	case s.state == storage.StateSealed && !active && leaf:
		t.order.Place(ref, s.priority, s.tick)
		s.ordered = true
	case s.ordered:
		t.order.Remove(ref)
		s.ordered = false
	}
}

// free is the number of free slots.
func (t *tier) free() int { return t.counts[storage.StateFree] }

// popFree takes a free slot, of the first extent that has one, so that later
// ones stay empty where they can; NoRef when there is none.
func (t *tier) popFree() registry.Ref {
	for ; t.freeFrom < len(t.parts); t.freeFrom++ {
		p := t.parts[t.freeFrom]
		if p == nil || len(p.free) == 0 {
			continue
		}
		last := len(p.free) - 1
		i := p.free[last]
		p.free = p.free[:last]
		return registry.MakeRef(p.number, i)
	}
	return registry.NoRef
}

// pushFree gives a slot back to popFree.
func (t *tier) pushFree(ref registry.Ref) {
	p, i := t.at(ref)
	p.free = append(p.free, i)
	t.freeFrom = min(t.freeFrom, int(p.number))
}

// useLast has popFree take a slot, the last one that was pushed, after the others of
// its part.
func (t *tier) useLast(ref registry.Ref) {
	p, i := t.at(ref)
	if n := len(p.free); n > 0 && p.free[n-1] == i {
		copy(p.free[1:], p.free[:n-1])
		p.free[0] = i
	}
}

// stats are the tier's gauges.
func (t *tier) stats() TierStats {
	if t == nil {
		return TierStats{}
	}
	st := TierStats{
		Capacity:    t.capacity,
		Free:        t.counts[storage.StateFree],
		Granted:     t.counts[storage.StateGranted],
		Staging:     t.counts[storage.StateStaging],
		Receiving:   t.counts[storage.StateReceiving],
		Quarantined: t.counts[storage.StateQuarantined],
		Active:      t.active,
		Extents:     t.live,
	}
	st.Inactive = t.counts[storage.StateSealed] + t.counts[storage.StateFilled] + t.counts[storage.StateEvicting] - t.active
	for _, p := range t.parts {
		if p != nil {
			st.Bytes += p.geometry().FileBytes()
		}
	}
	return st
}

// recordOf is the record of a block that is about to occupy a slot.
func recordOf(b *Block, length uint64) storage.Record {
	return storage.Record{
		Key: b.Key, Parent: b.Parent, Seed: b.Seed, Position: b.Position, Length: uint32(length),
		Local: b.Local, Seq: b.Seq, ParentSeq: b.ParentSeq,
	}
}

// blockOf is the block that a record describes.
func blockOf(r *storage.Record) Block {
	return Block{
		Key: r.Key, Parent: r.Parent, Local: r.Local, Seq: r.Seq,
		ParentSeq: r.ParentSeq, Position: r.Position, Seed: r.Seed,
	}
}
