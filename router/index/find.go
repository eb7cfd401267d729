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
	case x.dense && (ok || x.listing == noRun):
		x.spared(o, p, ok)
	case !ok:
		if x.dense {
			x.hurry()
			// A search leaves out what has just been entered.
			if p, ok = x.lookup(h); ok {
				return p, true
			}
		}
		if p, ok = x.scan(o, h); ok {
			x.mark(p, h)
		}
	}
	return p, ok
}

// hurry enters a share of all runs into a directory that is becoming dense, so
// that one change with many unknown hashes makes a bounded number of searches.
func (x *Index) hurry() {
	const share = 32
	for range 1 + int(x.runs.unused)/share/listRuns {
		x.list()
	}
}

// scan looks for h in the runs of o, and then in all. What it costs is weighed
// against what has been applied.
func (x *Index) scan(o *owner, h kv.SequenceHash) (place, bool) {
	x.counts.Scans++
	scanned := 0
	found := place{}
	look := func(r runID, hd *head, s *side) bool {
		st := hd.storage()
		if !s.live || s.listed || st.blocks() == 0 {
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
	if !x.dense {
		x.weigh(scanned)
	}
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
func (x *Index) spared(o *owner, p place, found bool) {
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

// makeDense has every block entered into the directory, from now on when it comes
// and those that are there bit by bit.
func (x *Index) makeDense() {
	x.counts.DenseSwitches++
	x.search = searchCost{applied: x.applied}
	x.dense = true
	x.listing = rootRun + 1
	x.fit(min(x.resident+x.resident/8, int(x.arena.end)*unitBlocks))
}

// listRuns is how many runs each change enters into a directory that is becoming
// dense.
const listRuns = 256

// list enters the next runs into a directory that is becoming dense.
func (x *Index) list() {
	if x.listing == noRun {
		return
	}
	for end := min(x.listing+listRuns, x.runs.unused); x.listing < end; x.listing++ {
		s := x.runs.side(x.listing)
		if !s.live || s.listed {
			continue
		}
		s.listed = true
		hashes := x.arena.hashes(x.runs.head(x.listing).storage())
		x.fit(len(hashes))
		for left := spanMask(0, len(hashes)).without(s.marks); !left.empty(); {
			i := left.pop()
			x.directory.put(directorySlot(kv.SequenceHash(hashes[i]), place{x.listing, i}))
		}
	}
	if x.listing >= x.runs.unused {
		x.listing = noRun
	}
}

// makeSparse leaves in the directory what a sparse one would have.
func (x *Index) makeSparse() {
	x.counts.DenseSwitches++
	x.dense, x.listing = false, noRun
	x.directory = newDirectory(0)
	x.runs.all(func(r runID, h *head, side *side) bool {
		side.listed = false
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
