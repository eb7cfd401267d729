package index

import "github.com/blockyard-ai/blockyard/internal/kv"

// spill puts the place that a hint gave up into the directory: whoever comes
// back to it will not find it next to anything.
func (x *Index) spill(h hint) {
	if x.holds(h.place, h.hash) {
		x.mark(h.place, h.hash)
	}
}

// find is the block with hash h, most likely one of o's.
func (x *Index) find(o *owner, h kv.SequenceHash) (place, bool) {
	if x.holds(o.stored.place, h) {
		return o.stored.place, true
	}
	if x.holds(o.removed.place, h) {
		return o.removed.place, true
	}
	p, ok := x.lookup(h)
	switch {
	case x.dense:
		x.spared(o, p, h, ok)
	case !ok:
		if p, ok = x.scan(o, h); ok {
			x.mark(p, h)
		}
	}
	return p, ok
}

// scan looks for h in the runs of o, and then in all. What it costs is weighed
// against what has been applied.
func (x *Index) scan(o *owner, h kv.SequenceHash) (place, bool) {
	x.counts.Scans++
	scanned := 0
	found := place{}
	look := func(r runID, hd *head, s *side) bool {
		st := hd.storage()
		if !s.live || st.blocks() == 0 {
			return true
		}
		scanned += st.blocks()
		if i := position(x.arena.hashes(st), word(h)); i >= 0 {
			found = place{r, i}
		}
		return found.run == noRun
	}
	for i := len(o.runs) - 1; i >= 0 && found.run == noRun; i-- {
		c, at := x.runs.chunk(o.runs[i])
		look(o.runs[i], &c.heads[at], &c.sides[at])
	}
	if found.run == noRun {
		x.runs.all(look)
	}
	x.counts.ScannedBlocks += uint64(scanned)
	x.weigh(scanned)
	return found, found.run != noRun
}

// position is where h is among the hashes, or -1.
func position(hashes []word, h word) int {
	i := 0
	for ; i+8 <= len(hashes); i += 8 {
		b := (*[8]word)(hashes[i:])
		if b[0] == h || b[1] == h || b[2] == h || b[3] == h || b[4] == h || b[5] == h || b[6] == h || b[7] == h {
			break
		}
	}
	for ; i < len(hashes); i++ {
		if hashes[i] == h {
			return i
		}
	}
	return -1
}

// A scan costs a fraction of a nanosecond per block, an entry in a dense
// directory some ten times as much, and each block pays for that twice.
const (
	scanRatio  = 8
	scanSlack  = 4 << 20
	scanWindow = 1 << 24
)

// searchCost is what decides between the sparse and the dense directory.
type searchCost struct {
	// scanned counts the blocks looked at, or those that would have been without
	// the dense directory, and applied what Index.applied was when counting began.
	scanned, applied int
}

// weigh makes the directory dense when scans cost more than it would.
func (x *Index) weigh(scanned int) {
	c := &x.search
	c.scanned += scanned
	applied := x.applied - c.applied
	if c.scanned > scanRatio*applied+scanSlack {
		x.makeDense()
	} else if applied > scanWindow {
		c.scanned /= 2
		c.applied += applied / 2
	}
}

// spared notes what a search in the dense directory would have cost without it,
// and gives the directory up when it is not worth its price.
func (x *Index) spared(o *owner, p place, h kv.SequenceHash, found bool) {
	c := &x.search
	if !found {
		c.scanned += x.resident
	} else if s := x.runs.side(p.run); !s.marks.has(p.pos) {
		c.scanned += int(o.pairs)
		s.marks.set(p.pos)
	}
	applied := x.applied - c.applied
	if applied < scanSlack {
		return
	}
	if 4*c.scanned < scanRatio*applied {
		x.makeSparse()
	}
	*c = searchCost{applied: x.applied}
}

// makeDense enters every block into the directory.
func (x *Index) makeDense() {
	x.counts.DenseSwitches++
	x.search = searchCost{applied: x.applied}
	x.dense = true
	d := newDirectory(min(x.resident+x.resident/8, int(x.arena.end)*unitBlocks))
	x.runs.all(func(r runID, h *head, _ *side) bool {
		if s := h.storage(); s.blocks() > 0 {
			for i, hash := range x.arena.hashes(s) {
				d.put(directorySlot(kv.SequenceHash(hash), place{r, i}))
			}
		}
		return true
	})
	x.directory = d
}

// makeSparse leaves in the directory what a sparse one would have.
func (x *Index) makeSparse() {
	x.counts.DenseSwitches++
	x.dense = false
	x.directory = newDirectory(0)
	x.runs.all(func(r runID, h *head, side *side) bool {
		if s := h.storage(); s.blocks() > 0 {
			hashes := x.arena.hashes(s)
			x.fit(side.marks.count())
			for m := side.marks; !m.empty(); {
				i := m.pop()
				x.directory.put(directorySlot(kv.SequenceHash(hashes[i]), place{r, i}))
			}
		}
		return true
	})
}
