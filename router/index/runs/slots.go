package runs

import "sync/atomic"

// Slots walks over the slots of one run. A slot holds an entry, which says who holds which
// blocks of the run, or 0. The first slots are in the run's Head, the others in a list of
// Overflow nodes. A walk is for the writer.
type Slots struct {
	list []atomic.Uint64
	more *Overflow
}

// Slots returns a walk over the entry slots of run r. The first Next returns the first slot.
func (t *Table) Slots(r ID) Slots {
	c, i := t.Chunk(r)
	s := Slots{list: c.Heads[i].Entries[:]}
	if c.Heads[i].Flags.Load()&FlagOverflow != 0 {
		s.more = c.Overflow[i].Load()
	}
	return s
}

// Next returns the next slot of the walk, or nil after the last. The slot may be free, which
// is 0.
func (s *Slots) Next() *atomic.Uint64 {
	for len(s.list) == 0 {
		if s.more == nil {
			return nil
		}
		s.list, s.more = s.more.Entries[:], s.more.Next.Load()
	}
	slot := &s.list[0]
	s.list = s.list[1:]
	return slot
}

// Find returns the next slot of the walk whose entry has the bits want under mask, or nil after the
// last.
func (s *Slots) Find(mask, want uint64) *atomic.Uint64 {
	for {
		for i := range s.list {
			if s.list[i].Load()&mask == want {
				slot := &s.list[i]
				s.list = s.list[i+1:]
				return slot
			}
		}
		s.list = nil
		if s.more == nil {
			return nil
		}
		s.list, s.more = s.more.Entries[:], s.more.Next.Load()
	}
}

const (
	overflowBytes = 8 + 8*overflowEntries
	// overflowBatch is the most nodes that are made at once.
	overflowBatch = 16
)

// AddSlots gives run r more free slots for entries, which say who holds which of its blocks.
// It returns a walk over the new slots. They come in overflow nodes of overflowEntries slots.
// A run that has nodes gets as many again, at most overflowBatch, side by side in memory.
// That may be more than the run needs, so AddSlots sets oversized, and the next Compact looks.
func (t *Table) AddSlots(r ID) Slots {
	c, i := t.Chunk(r)
	nodes := 0
	last := c.Overflow[i].Load()
	for o := last; o != nil; o = o.Next.Load() {
		last = o
		nodes++
	}
	fresh := t.newOverflow(min(max(nodes, 1), overflowBatch))
	t.oversized = nodes > 0
	if last != nil {
		last.Next.Store(fresh)
	} else {
		c.Overflow[i].Store(fresh)
		c.Heads[i].Flags.Or(FlagOverflow) // readers look at the nodes from now on
	}
	return Slots{more: fresh}
}

// newOverflow returns the first of n linked nodes with free slots, and counts their memory.
func (t *Table) newOverflow(n int) *Overflow {
	nodes := make([]Overflow, n)
	for i := 1; i < n; i++ {
		nodes[i-1].Next.Store(&nodes[i])
	}
	t.OverflowBytes += int64(n) * overflowBytes
	return &nodes[0]
}

// Compact moves the entries of run r into fewer overflow nodes, if the last AddSlots left
// most of the slots free. The caller calls it once it has written the new entries. A reader
// of the old nodes sees the entries as they were.
func (t *Table) Compact(r ID) {
	if !t.oversized {
		return
	}
	t.oversized = false
	c, i := t.Chunk(r)
	var live []uint64
	room := 0 // the number of slots in the nodes
	for walk := (Slots{more: c.Overflow[i].Load()}); ; room++ {
		slot := walk.Next()
		if slot == nil {
			break
		}
		if v := slot.Load(); v != 0 {
			live = append(live, v)
		}
	}
	if 2*len(live)+overflowEntries > room { // half of the slots or more are in use
		return
	}
	t.uncountOverflow(c, i)
	fresh := t.newOverflow(len(live)/overflowEntries + 1)
	walk := Slots{more: fresh}
	for _, v := range live {
		walk.Next().Store(v)
	}
	c.Overflow[i].Store(fresh)
}

// DropOverflow removes the overflow nodes of run r, which nobody holds any more.
func (t *Table) DropOverflow(r ID) {
	c, i := t.Chunk(r)
	t.uncountOverflow(c, i)
	c.Overflow[i].Store(nil)
}

// uncountOverflow subtracts the memory of the overflow nodes of run i in chunk c.
func (t *Table) uncountOverflow(c *Chunk, i int) {
	for o := c.Overflow[i].Load(); o != nil; o = o.Next.Load() {
		t.OverflowBytes -= overflowBytes
	}
}
