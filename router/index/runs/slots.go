package runs

import "sync/atomic"

// Slots walks over the slots for entries of one run. It is for the writer.
type Slots struct {
	list []atomic.Uint64
	more *Overflow
}

// Slots returns a walk over the slots of a run.
func (t *Table) Slots(r ID) Slots {
	c, i := t.Chunk(r)
	s := Slots{list: c.Heads[i].Entries[:]}
	if c.Heads[i].Flags.Load()&FlagMore != 0 {
		s.more = c.Over[i].Load()
	}
	return s
}

// Next returns the next slot, or nil.
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

const (
	overflowBytes = 8 + 8*overflowEntries
	// overflowBatch is the most nodes that are made at once.
	overflowBatch = 16
)

// AddSlots appends overflow nodes, of overflowEntries free slots each, to a run and returns
// the slots. A run that has nodes gets as many again, at most overflowBatch, side by side in
// memory. Table.oversized then tells trim that the run may have more slots than it needs.
func (t *Table) AddSlots(r ID) Slots {
	c, i := t.Chunk(r)
	nodes := 0
	last := c.Over[i].Load()
	for o := last; o != nil; o = o.Next.Load() {
		last = o
		nodes++
	}
	fresh := t.newOverflow(min(max(nodes, 1), overflowBatch))
	t.oversized = nodes > 0
	if last != nil {
		last.Next.Store(fresh)
	} else {
		c.Over[i].Store(fresh)
		c.Heads[i].Flags.Or(FlagMore)
	}
	return Slots{more: fresh}
}

// newOverflow makes a list of n nodes.
func (t *Table) newOverflow(n int) *Overflow {
	nodes := make([]Overflow, n)
	for i := 1; i < n; i++ {
		nodes[i-1].Next.Store(&nodes[i])
	}
	t.OverflowBytes += int64(n) * overflowBytes
	return &nodes[0]
}

// Compact moves the overflow entries of a run together if the last AddSlots left
// most slots free. A reader of the old list sees the entries as they were.
func (t *Table) Compact(r ID) {
	if !t.oversized {
		return
	}
	t.oversized = false
	c, i := t.Chunk(r)
	var live []uint64
	room := 0
	for walk := (Slots{more: c.Over[i].Load()}); ; room++ {
		slot := walk.Next()
		if slot == nil {
			break
		}
		if v := slot.Load(); v != 0 {
			live = append(live, v)
		}
	}
	if 2*len(live)+overflowEntries > room {
		return
	}
	t.uncountOverflow(c, i)
	fresh := t.newOverflow(len(live)/overflowEntries + 1)
	walk := Slots{more: fresh}
	for _, v := range live {
		walk.Next().Store(v)
	}
	c.Over[i].Store(fresh)
}

// DropOverflow forgets the overflow of a run.
func (t *Table) DropOverflow(r ID) {
	c, i := t.Chunk(r)
	t.uncountOverflow(c, i)
	c.Over[i].Store(nil)
}

func (t *Table) uncountOverflow(c *Chunk, i int) {
	for o := c.Over[i].Load(); o != nil; o = o.Next.Load() {
		t.OverflowBytes -= overflowBytes
	}
}
