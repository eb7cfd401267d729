package engine

import (
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Sink receives the changes of a tier. It must not keep the slices.
type Sink interface {
	// Stored receives blocks, each the child of the one before. The first is the child of parent; 0
	// begins a sequence.
	Stored(parent kv.SequenceHash, blocks []kvevent.StoredBlock)
	Removed(hashes []kv.SequenceHash)
}

// device is the block pool of an engine. Blocks are named, with a count of references, or anonymous
// while they are not full. A named block without references stays until its room is needed.
type device struct {
	sink Sink
	// slots are the named blocks from index 1. slots[0] is both ends of the list of unreferenced
	// blocks, the next victim first.
	slots  []deviceSlot
	spare  []int32
	blocks slots
	// capacity and anonymous are in blocks. unreferenced is the length of the list.
	capacity, anonymous, unreferenced int

	removed []kv.SequenceHash
	// computing is true while a step is planned. The sink is told of the blocks of untold when the step
	// has ended.
	computing bool
	untold    []untold
}

// untold are blocks first..end-1 of a chain.
type untold struct {
	Chain
	first, end int
}

// deviceSlot is a named block. prev and next are valid without references.
type deviceSlot struct {
	hash       kv.SequenceHash
	number     uint32
	refs       int32
	prev, next int32
}

func newDevice(capacity int, sink Sink) *device {
	return &device{sink: sink, slots: make([]deviceSlot, 1), capacity: capacity}
}

// available returns how many blocks can be taken.
func (d *device) available() int {
	return d.capacity - d.anonymous - (d.blocks.n - d.unreferenced)
}

// used returns the share of the blocks that requests use.
func (d *device) used() float64 { return 1 - float64(d.available())/float64(d.capacity) }

// pin adds a reference to each block. The pool has all of them.
func (d *device) pin(numbers []uint32) {
	for _, n := range numbers {
		at, _ := d.blocks.get(n)
		d.reference(int32(at))
	}
}

func (d *device) reference(at int32) {
	s := &d.slots[at]
	if s.refs == 0 {
		d.slots[s.prev].next, d.slots[s.next].prev = s.next, s.prev
		d.unreferenced--
	}
	s.refs++
}

// take takes n anonymous blocks and evicts as many as that needs. It returns false, and takes
// nothing, if too few are available.
func (d *device) take(n int) bool {
	if n > d.available() {
		return false
	}
	d.anonymous += n
	d.evict()
	return true
}

// evict removes unreferenced blocks until the pool is within its capacity.
func (d *device) evict() {
	d.removed = d.removed[:0]
	for d.blocks.n+d.anonymous > d.capacity {
		victim := d.slots[0].next
		s := &d.slots[victim]
		d.slots[s.prev].next, d.slots[s.next].prev = s.next, s.prev
		d.unreferenced--
		d.blocks.remove(s.number)
		d.removed = append(d.removed, s.hash)
		d.spare = append(d.spare, victim)
	}
	if len(d.removed) > 0 {
		d.sink.Removed(d.removed)
	}
}

// give gives n anonymous blocks back.
func (d *device) give(n int) { d.anonymous -= n }

// name turns anonymous blocks into blocks first..end-1 of a chain, each with one reference. A
// block that the pool has already is referenced, and its anonymous block is given back.
func (d *device) name(c Chain, first, end int) {
	d.anonymous -= end - first
	from := first // of the blocks that are not told yet
	for i := first; i < end; i++ {
		if at, ok := d.blocks.get(c.Numbers[i]); ok {
			d.tell(c, from, i)
			from = i + 1
			d.reference(int32(at))
			continue
		}
		var at int32
		if n := len(d.spare); n > 0 {
			at, d.spare = d.spare[n-1], d.spare[:n-1]
		} else {
			at = int32(len(d.slots))
			d.slots = append(d.slots, deviceSlot{})
		}
		d.slots[at] = deviceSlot{hash: c.Blocks[i].Hash, number: c.Numbers[i], refs: 1}
		d.blocks.put(c.Numbers[i], uint32(at))
	}
	d.tell(c, from, end)
}

// tell sends the sink that blocks first..end-1 of a chain were stored, or has flush send it.
func (d *device) tell(c Chain, first, end int) {
	if d.computing {
		d.untold = append(d.untold, untold{c, first, end})
		return
	}
	tellStored(d.sink, c, first, end)
}

// flush sends the sink what the step has computed.
func (d *device) flush() {
	for _, u := range d.untold {
		d.tell(u.Chain, u.first, u.end)
	}
	clear(d.untold)
	d.untold = d.untold[:0]
}

// tellStored sends a sink that blocks first..end-1 of a chain were stored.
func tellStored(sink Sink, c Chain, first, end int) {
	if first >= end {
		return
	}
	var parent kv.SequenceHash
	if first > 0 {
		parent = c.Blocks[first-1].Hash
	}
	sink.Stored(parent, c.Blocks[first:end])
}

// unpin takes a reference from each block, the last block first, so that the end of a text is
// evicted first.
func (d *device) unpin(numbers []uint32) {
	for i := len(numbers) - 1; i >= 0; i-- {
		slot, _ := d.blocks.get(numbers[i])
		at := int32(slot)
		s := &d.slots[at]
		if s.refs--; s.refs > 0 {
			continue
		}
		last := d.slots[0].prev
		s.prev, s.next = last, 0
		d.slots[last].next, d.slots[0].prev = at, at
		d.unreferenced++
	}
}

// load stores blocks first..end-1 of a chain without references, as the most recent ones. The pool
// has the blocks before first. It stops where no room is left, and loads nothing behind a block that
// the running step computes: the sink would hear of the child first.
func (d *device) load(c Chain, first, end int) {
	if first > 0 && d.isUntold(c.Numbers[first-1]) {
		return
	}
	d.pin(c.Numbers[:first]) // or they could leave to make room
	n := max(0, min(end-first, d.available()))
	if n > 0 {
		d.take(n)
		d.name(c, first, first+n)
	}
	d.unpin(c.Numbers[:first+n])
}

// isUntold reports whether the running step computes a block.
func (d *device) isUntold(number uint32) bool {
	return slices.ContainsFunc(d.untold, func(u untold) bool { return slices.Contains(u.Numbers[u.first:u.end], number) })
}
