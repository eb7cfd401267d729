package index

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// enterHint enters the block of a hint into the directory. An owner calls enterHint before
// the owner gives the hint up, because no hint leads to the block afterwards.
func (x *Index) enterHint(h hint) {
	if x.runs.HasHash(h.Place, h.hash) {
		x.mark(h.Place, h.hash)
	}
}

// find returns the block with hash h. It looks first where o most likely has the block. ok
// is false when the index does not have the block.
func (x *Index) find(o *owner, h kv.SequenceHash) (p runs.Place, ok bool) {
	if x.runs.HasHash(o.stored.Place, h) {
		return o.stored.Place, true
	}
	if x.runs.HasHash(o.removed.Place, h) {
		return o.removed.Place, true
	}
	p, ok = x.directory.Lookup(x.runs, h)
	switch {
	case x.dense && (ok || x.nextUnlisted == runs.None):
		x.countSavedSearch(o, p, ok)
	case !ok:
		if x.dense {
			x.listMany()
			// A scan leaves out the blocks that listMany has just entered.
			if p, ok = x.directory.Lookup(x.runs, h); ok {
				return p, true
			}
		}
		if p, ok = x.scan(o, h); ok {
			x.mark(p, h)
		}
	}
	return p, ok
}

// listMany enters a share of all runs into a directory that becomes dense, so that
// one change with many unknown hashes makes a bounded number of scans.
func (x *Index) listMany() {
	const share = 32
	for range 1 + int(x.runs.Unused)/share/listRuns {
		x.listNextRuns()
	}
}

// scan looks for the block with hash h in the runs of o, then in all runs. The work is
// linear in the blocks that it compares.
func (x *Index) scan(o *owner, h kv.SequenceHash) (runs.Place, bool) {
	x.counts.Scans++
	scanned := 0
	found := runs.Place{}
	look := func(r runs.ID, hd *runs.Head, s *runs.WriterState) bool {
		st := hd.Storage()
		if !s.Live || s.Listed || st.Blocks() == 0 {
			return true
		}
		scanned += st.Blocks()
		if i := position(x.arena.Hashes(st), runs.Word(h)); i >= 0 {
			found = runs.At(r, i)
		}
		return found.Run == runs.None
	}
	for i := len(o.runs) - 1; i >= 0 && found.Run == runs.None; i-- {
		look(o.runs[i], x.runs.Head(o.runs[i]), x.runs.WriterState(o.runs[i]))
	}
	if found.Run == runs.None {
		x.runs.All(look)
	}
	x.counts.ScannedBlocks += uint64(scanned)
	if !x.dense {
		x.countSearch(scanned)
	}
	return found, found.Run != runs.None
}

// position returns the index of h in hashes, or -1.
func position(hashes []runs.Word, h runs.Word) int {
	i := 0
	for ; i+8 <= len(hashes); i += 8 {
		b := (*[8]runs.Word)(hashes[i:])
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

// A scan costs a fraction of a nanosecond per block. An entry in a dense directory
// costs about ten times as much, and each block pays for it twice.
const (
	scanRatio  = 8
	scanSlack  = 4 << 20
	scanWindow = 1 << 24
)

// searchCost decides between the sparse and the dense directory.
type searchCost struct {
	// scanned counts the blocks that scans compared, or would have compared without
	// the dense directory. applied is Index.applied when the count began.
	scanned, applied int
}

// countSearch counts a scan, and makes the directory dense when scans cost more
// than a dense directory would.
func (x *Index) countSearch(scanned int) {
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

// countSavedSearch counts a scan that the dense directory has saved. The directory
// becomes sparse again when it saves less than it costs.
func (x *Index) countSavedSearch(o *owner, p runs.Place, found bool) {
	c := &x.search
	if !found {
		c.scanned += x.resident
	} else if s := x.runs.WriterState(p.Run); !s.Marks.Has(p.Pos) {
		c.scanned += int(o.pairs)
		s.Marks.Set(p.Pos)
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

// makeDense makes the directory dense. New blocks are entered when they are stored.
// listNextRuns enters the existing blocks, a few runs at each change.
func (x *Index) makeDense() {
	x.counts.DenseSwitches++
	x.search = searchCost{applied: x.applied}
	x.dense = true
	x.nextUnlisted = runs.Root + 1
	x.growDirectory(min(x.resident+x.resident/8, int(x.arena.Units())*runs.UnitBlocks))
}

// listRuns is the number of runs that each change enters into a directory that becomes dense.
const listRuns = 256

// listNextRuns enters the next runs into a directory that becomes dense.
func (x *Index) listNextRuns() {
	if x.nextUnlisted == runs.None {
		return
	}
	for end := min(x.nextUnlisted+listRuns, x.runs.Unused); x.nextUnlisted < end; x.nextUnlisted++ {
		s := x.runs.WriterState(x.nextUnlisted)
		if !s.Live || s.Listed {
			continue
		}
		s.Listed = true
		hashes := x.arena.Hashes(x.runs.Head(x.nextUnlisted).Storage())
		x.growDirectory(len(hashes))
		for left := runs.Span(0, len(hashes)).Without(s.Marks); !left.Empty(); {
			i := left.Pop()
			x.directory.Put(kv.SequenceHash(hashes[i]), runs.At(x.nextUnlisted, i))
		}
	}
	if x.nextUnlisted >= x.runs.Unused {
		x.nextUnlisted = runs.None
	}
}

// makeSparse reduces the directory to the marked blocks.
func (x *Index) makeSparse() {
	x.counts.DenseSwitches++
	x.dense, x.nextUnlisted = false, runs.None
	x.directory = runs.NewDirectory(0)
	x.runs.All(func(r runs.ID, h *runs.Head, side *runs.WriterState) bool {
		side.Listed = false
		if s := h.Storage(); s.Blocks() > 0 {
			hashes := x.arena.Hashes(s)
			x.growDirectory(side.Marks.Count())
			for m := side.Marks; !m.Empty(); {
				i := m.Pop()
				x.directory.Put(kv.SequenceHash(hashes[i]), runs.At(r, i))
			}
		}
		return true
	})
}

// mark enters the block at p with hash h into the directory, dense or sparse, because no
// neighbour leads to the block.
func (x *Index) mark(p runs.Place, h kv.SequenceHash) {
	s := x.runs.WriterState(p.Run)
	if s.Marks.Has(p.Pos) {
		return
	}
	s.Marks.Set(p.Pos)
	if !s.Listed {
		x.growDirectory(1)
		x.directory.Put(h, p)
	}
}

// enlist enters the blocks of a run from position lo on into the directory, if the
// directory has all earlier blocks of the run.
func (x *Index) enlist(r runs.ID, lo int) {
	if !x.runs.WriterState(r).Listed {
		return
	}
	hashes := x.arena.Hashes(x.runs.Head(r).Storage())
	x.growDirectory(len(hashes) - lo)
	for _, h := range hashes[lo:] {
		x.directory.Prefetch(kv.SequenceHash(h))
	}
	for i := lo; i < len(hashes); i++ {
		x.directory.Put(kv.SequenceHash(hashes[i]), runs.At(r, i))
	}
}

// unmark removes the blocks of a run from position lo on from the directory.
func (x *Index) unmark(r runs.ID, lo int) {
	s := x.runs.WriterState(r)
	hashes := x.arena.Hashes(x.runs.Head(r).Storage())
	gone := s.Marks.And(runs.Span(lo, runs.MaxBlocks))
	if s.Listed {
		gone = runs.Span(lo, len(hashes))
		for _, h := range hashes[lo:] {
			x.directory.Prefetch(kv.SequenceHash(h))
		}
	}
	for !gone.Empty() {
		i := gone.Pop()
		x.directory.Delete(kv.SequenceHash(hashes[i]), runs.At(r, i))
	}
	s.Marks = s.Marks.And(runs.Span(0, lo))
}

// growDirectory replaces a directory that has no room for n more blocks.
func (x *Index) growDirectory(n int) {
	if !x.directory.Fits(n) {
		x.directory = x.directory.Grown(n, x.mayGrow)
	}
}
