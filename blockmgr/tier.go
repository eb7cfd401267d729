package blockmgr

import (
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// recencyShift makes a record's recency coarse: a counter of 32 bits then lasts
// for four trillion uses of a block.
const recencyShift = 10

// slot is what changes often about a slot; what describes its block is in the
// slot's record. No pointers: there may be millions.
type slot struct {
	generation uint64
	// tick is when the slot was last used, on the pool's clock.
	tick uint64
	// session is whom a granted slot belongs to.
	session SessionID
	entry   uint32
	part    uint32
	// pins are held by sessions, holds by the manager's own work: sealing, the
	// write-behind, reads, lookups that have not answered yet.
	pins  uint32
	holds uint32
	// heap is the slot's place in the eviction order, -1 when it is not in it.
	heap  int32
	state storage.State
	// active: counted in tier.active.
	active bool
	// queued: waits for or is in the write-behind.
	queued bool
	// missed: found the write-behind full and waits to be offered again.
	missed bool
	// fromDisk: promoted, and no lookup has reported it since.
	fromDisk bool
}

// resident reports whether the slot's block can be served.
func (s *slot) resident() bool {
	return s.state == storage.StateSealed || s.state == storage.StateFilled
}

// part is one extent of a tier. Exactly one of host and disk is set.
type part struct {
	id   uint32
	base uint32
	recs *storage.Section
	host *storage.HostExtent
	disk *storage.DiskExtent
}

func (p *part) geometry() storage.Geometry {
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

// tier is the slots of one pool in one tier, numbered through all its extents.
// Its pool's mutex guards it.
type tier struct {
	level level
	kind  kv.Tier
	// ns is the namespace's index in the tier's slot table.
	ns     uint32
	parts  []part
	byID   map[uint32]uint32
	slots  []slot
	free   []uint32
	order  evictionOrder
	counts [storage.NumStates]int
	active int
	// full: no further extent could be had at the broker's turn fullAt. It is
	// worth another try at another turn.
	full   bool
	fullAt uint64
}

func newTier(lv level, kind kv.Tier, ns uint32) *tier {
	return &tier{level: lv, kind: kind, ns: ns, byID: map[uint32]uint32{}}
}

// add appends an extent's slots, all free at the generations of their records.
func (t *tier) add(p part) {
	p.base = uint32(len(t.slots))
	n := p.geometry().Slots
	index := uint32(len(t.parts))
	for i := range n {
		generation := uint64(1)
		if r, err := p.recs.Get(i); err == nil {
			generation = r.Generation
		}
		t.slots = append(t.slots, slot{generation: generation, entry: none, part: index, heap: -1})
	}
	for i := n; i > 0; i-- {
		t.free = append(t.free, p.base+i-1)
	}
	t.counts[storage.StateFree] += int(n)
	t.byID[p.id] = index
	t.parts = append(t.parts, p)
}

// removeLast takes the last extent out, none of whose slots has a block.
func (t *tier) removeLast() part {
	p := t.parts[len(t.parts)-1]
	for ref := p.base; ref < uint32(len(t.slots)); ref++ {
		if s := &t.slots[ref]; s.entry != none || s.heap >= 0 {
			panic(fmt.Sprintf("BUG: %s slot %d of an extent that goes has a block", t.kind, ref))
		}
		t.counts[t.slots[ref].state]--
	}
	t.free = slices.DeleteFunc(t.free, func(ref uint32) bool { return ref >= p.base })
	t.slots = t.slots[:p.base]
	t.parts = t.parts[:len(t.parts)-1]
	delete(t.byID, p.id)
	return p
}

// at finds the extent of a slot and its index in there.
func (t *tier) at(ref uint32) (*part, uint32) {
	p := &t.parts[t.slots[ref].part]
	return p, ref - p.base
}

// name is the slot's name for callers.
func (t *tier) name(ref uint32) Slot {
	p, i := t.at(ref)
	return Slot{Extent: p.id, Index: i, Generation: t.slots[ref].generation}
}

// lookup finds the slot that a caller named; ok is false when there is none of
// that extent, index and generation.
func (t *tier) lookup(s Slot) (ref uint32, ok bool) {
	index, ok := t.byID[s.Extent]
	if !ok {
		return none, false
	}
	p := &t.parts[index]
	if s.Index >= p.recs.Slots() {
		return none, false
	}
	ref = p.base + s.Index
	return ref, t.slots[ref].generation == s.Generation
}

// record is the slot's record. The image is ours alone and was encoded here, so
// a damaged one is a broken invariant.
func (t *tier) record(ref uint32) storage.Record {
	p, i := t.at(ref)
	r, err := p.recs.Get(i)
	if err != nil {
		panic(fmt.Sprintf("BUG: %s slot %d: %v", t.kind, ref, err))
	}
	return r
}

// put stores r as the slot's record, with the slot's own generation and state.
func (t *tier) put(ref uint32, r storage.Record) {
	p, i := t.at(ref)
	s := &t.slots[ref]
	r.Namespace, r.Generation, r.State = t.ns, s.generation, s.state
	r.Session, r.Recency = uint64(s.session), uint32(s.tick>>recencyShift)
	p.recs.Put(i, &r)
}

// setState moves the slot between the counters; the caller puts the record.
func (t *tier) setState(ref uint32, to storage.State) {
	s := &t.slots[ref]
	t.counts[s.state]--
	s.state = to
	t.counts[to]++
}

// settle brings the slot's place in the active count and in the eviction order
// up to date after a change of its state, pins, holds, tick or children.
func (t *tier) settle(ref uint32, kids uint32) {
	s := &t.slots[ref]
	active := s.resident() && s.pins+s.holds > 0
	if active != s.active {
		s.active = active
		if active {
			t.active++
		} else {
			t.active--
		}
	}
	if s.state == storage.StateSealed && !active && kids == 0 {
		t.order.place(t.slots, ref)
	} else {
		t.order.remove(t.slots, ref)
	}
}

// popFree takes a free slot; none when there is none.
func (t *tier) popFree() uint32 {
	n := len(t.free)
	if n == 0 {
		return none
	}
	ref := t.free[n-1]
	t.free = t.free[:n-1]
	return ref
}

// stats are the tier's gauges.
func (t *tier) stats() TierStats {
	if t == nil {
		return TierStats{}
	}
	st := TierStats{
		Capacity:    len(t.slots),
		Free:        t.counts[storage.StateFree],
		Granted:     t.counts[storage.StateGranted],
		Staging:     t.counts[storage.StateStaging],
		Receiving:   t.counts[storage.StateReceiving],
		Quarantined: t.counts[storage.StateQuarantined],
		Active:      t.active,
		Extents:     len(t.parts),
	}
	st.Inactive = t.counts[storage.StateSealed] + t.counts[storage.StateFilled] + t.counts[storage.StateEvicting] - t.active
	for i := range t.parts {
		st.Bytes += t.parts[i].geometry().FileBytes()
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
