package index

import "sync/atomic"

// slots walks over the entries of a run, for the writer.
type slots struct {
	list []atomic.Uint64
	more *overflow
}

func (x *Index) slots(r runID) slots {
	c, i := x.runs.chunk(r)
	s := slots{list: c.heads[i].entries[:]}
	if c.heads[i].flags.Load()&flagMore != 0 {
		s.more = c.over[i].Load()
	}
	return s
}

// next is the next slot, or nil.
func (s *slots) next() *atomic.Uint64 {
	for len(s.list) == 0 {
		if s.more == nil {
			return nil
		}
		s.list, s.more = s.more.entries[:], s.more.next.Load()
	}
	slot := &s.list[0]
	s.list = s.list[1:]
	return slot
}

const (
	overflowBytes = 8 + 8*overflowEntries
	// overflowBatch is how many nodes are made at once at most.
	overflowBatch = 16
)

// addSlots gives a run more slots behind the ones it has, and returns them. A run
// with many owners gets several nodes at a time, one after the other in memory.
func (x *Index) addSlots(r runID) slots {
	c, i := x.runs.chunk(r)
	nodes := 0
	last := c.over[i].Load()
	for o := last; o != nil; o = o.next.Load() {
		last = o
		nodes++
	}
	fresh := x.newOverflow(min(max(nodes, 1), overflowBatch))
	x.crowded = nodes > 0
	if last != nil {
		last.next.Store(fresh)
	} else {
		c.over[i].Store(fresh)
		c.heads[i].flags.Or(flagMore)
	}
	return slots{more: fresh}
}

// newOverflow makes a list of nodes.
func (x *Index) newOverflow(n int) *overflow {
	nodes := make([]overflow, n)
	for i := 1; i < n; i++ {
		nodes[i-1].next.Store(&nodes[i])
	}
	x.overflowBytes += int64(n) * overflowBytes
	return &nodes[0]
}

// gather brings the entries of a run together when it was given slots while many
// of those it had were free, but not where they were needed. Who is reading the
// old list sees what was held when it was replaced.
func (x *Index) gather(r runID) {
	if !x.crowded {
		return
	}
	x.crowded = false
	c, i := x.runs.chunk(r)
	var live []uint64
	room := 0
	for walk := (slots{more: c.over[i].Load()}); ; room++ {
		slot := walk.next()
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
	x.dropSlots(r)
	fresh := x.newOverflow(len(live)/overflowEntries + 1)
	walk := slots{more: fresh}
	for _, v := range live {
		walk.next().Store(v)
	}
	c.over[i].Store(fresh)
}

// dropSlots takes the overflow of a run off the books.
func (x *Index) dropSlots(r runID) {
	c, i := x.runs.chunk(r)
	for o := c.over[i].Load(); o != nil; o = o.next.Load() {
		x.overflowBytes -= overflowBytes
	}
}
