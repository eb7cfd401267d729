package index

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// enterHint enters the block of an owner's hint into the directory, if the block is still
// there. store and remove call it before they replace the hint: the next event that
// continues at the block must find the block without a scan.
func (x *Index) enterHint(h hint) {
	if x.runs.HasHash(h.Place, h.hash) {
		x.mark(h.Place, h.hash)
	}
}

// find returns the block with hash h, for an event of owner o that names the block. It looks
// at o's last blocks, then in the directory, then scans the runs. A dense directory, which
// has every block, saves the scan. ok is false when the index does not have the block.
func (x *Index) find(o *owner, h kv.SequenceHash) (p runs.Place, ok bool) {
	if x.runs.HasHash(o.stored.Place, h) {
		return o.stored.Place, true
	}
	if x.runs.HasHash(o.removed.Place, h) {
		return o.removed.Place, true
	}
	p, ok = x.directory.Lookup(x.runs, h)
	switch {
	case x.dense && (ok || x.nextUnlisted == runs.None): // the directory's answer is final
		x.countSavedSearch(o, p, ok)
	case !ok:
		if x.dense { // the directory is still being filled
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

// listMany enters 1/32 of all runs into a directory that becomes dense. find calls it before
// each scan. So one event with many unknown hashes makes at most about 32 scans.
func (x *Index) listMany() {
	const share = 32
	for range 1 + int(x.runs.Unused)/share/listRuns {
		x.listNextRuns()
	}
}

// scan looks for the block with hash h without the directory: in the runs of owner o, then
// in all runs. The work is linear in the blocks that it compares. scan counts these blocks,
// because many expensive scans make the directory dense.
func (x *Index) scan(o *owner, h kv.SequenceHash) (runs.Place, bool) {
	x.counts.Scans++
	scanned := 0
	found := runs.Place{}
	look := func(r runs.ID, hd *runs.Head, s *runs.WriterState) (goOn bool) {
		st := hd.Storage()
		if !s.Live || s.Listed || st.Blocks() == 0 { // of a listed run the directory has all blocks
			return true
		}
		scanned += st.Blocks()
		if i := runs.IndexOf(x.arena.Hashes(st), runs.Word(h)); i >= 0 {
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

// A scan costs a fraction of a nanosecond per block. An entry in a dense directory
// costs about ten times as much, and each block pays for it twice.
const (
	// scanRatio is how many scanned blocks cost as much as one block in a dense directory.
	scanRatio = 8
	// scanSlack is the number of blocks of either kind before which nothing switches.
	scanSlack = 4 << 20
	// scanWindow is the number of changed blocks after which old scans count half.
	scanWindow = 1 << 24
)

// searchCost decides between the sparse and the dense directory.
type searchCost struct {
	// scanned counts the blocks that scans compared, or would have compared without
	// the dense directory. applied is Index.applied when the count began.
	scanned, applied int
}

// countSearch counts a scan that compared a number of blocks, while the directory is sparse.
// It makes the directory dense when scans have cost more than entering every stored and
// removed block into a dense directory would have.
func (x *Index) countSearch(scanned int) {
	c := &x.search
	c.scanned += scanned
	applied := x.applied - c.applied
	if c.scanned > scanRatio*applied+scanSlack {
		x.makeDense()
	} else if applied > scanWindow { // old scans count less and less
		c.scanned /= 2
		c.applied += applied / 2
	}
}

// countSavedSearch counts the blocks that find would have scanned without the dense
// directory, which has every block. o is the owner whose event named the block, and p the
// block that find returned, if found. The directory becomes sparse again, with only some
// blocks, when it saves less than a quarter of what it costs.
func (x *Index) countSavedSearch(o *owner, p runs.Place, found bool) {
	c := &x.search
	if !found { // a scan of all blocks
		c.scanned += x.resident
	} else if s := x.runs.WriterState(p.Run); !s.Marks.Has(p.Pos) {
		// A sparse directory lacks unmarked blocks. A scan would have found this one among
		// the owner's blocks and marked it.
		c.scanned += int(o.pairs)
		s.Marks.Set(p.Pos)
	}
	applied := x.applied - c.applied
	if applied < scanSlack { // too early to tell
		return
	}
	if 4*c.scanned < scanRatio*applied {
		x.makeSparse()
	}
	*c = searchCost{applied: x.applied}
}

// makeDense makes the directory find every block by its hash, so that nothing scans. New
// blocks are entered when they are stored. listNextRuns enters the existing blocks, a few
// runs at each change.
func (x *Index) makeDense() {
	x.counts.DenseSwitches++
	x.search = searchCost{applied: x.applied}
	x.dense = true
	x.nextUnlisted = runs.Root + 1
	x.growDirectory(min(x.resident+x.resident/8, int(x.arena.Units())*runs.UnitBlocks))
}

// listRuns is the number of runs that each change enters into a directory that becomes dense.
const listRuns = 256

// listNextRuns enters the blocks of the next listRuns runs into a directory that becomes
// dense. Each change calls it, so that no change waits for the whole index.
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
		// The directory has the marked blocks already.
		for left := runs.Span(0, len(hashes)).Without(s.Marks); !left.Empty(); {
			i := left.Pop()
			x.directory.Put(kv.SequenceHash(hashes[i]), runs.At(x.nextUnlisted, i))
		}
	}
	if x.nextUnlisted >= x.runs.Unused {
		x.nextUnlisted = runs.None
	}
}

// makeSparse replaces a dense directory, which has every block, by one that has only the
// marked blocks: those where events have begun or ended.
func (x *Index) makeSparse() {
	x.counts.DenseSwitches++
	x.dense, x.nextUnlisted = false, runs.None
	x.directory = runs.NewDirectory(0)
	x.runs.All(func(r runs.ID, h *runs.Head, state *runs.WriterState) bool {
		state.Listed = false
		if s := h.Storage(); s.Blocks() > 0 {
			hashes := x.arena.Hashes(s)
			x.growDirectory(state.Marks.Count())
			for marked := state.Marks; !marked.Empty(); {
				i := marked.Pop()
				x.directory.Put(kv.SequenceHash(hashes[i]), runs.At(r, i))
			}
		}
		return true
	})
}

// mark makes the directory find the block at p, which has hash h, also while the directory
// is sparse. Blocks where an event may continue are marked: only their hash leads there.
func (x *Index) mark(p runs.Place, h kv.SequenceHash) {
	s := x.runs.WriterState(p.Run)
	if s.Marks.Has(p.Pos) {
		return
	}
	s.Marks.Set(p.Pos)
	if !s.Listed { // of a listed run the directory has all blocks already
		x.growDirectory(1)
		x.directory.Put(h, p)
	}
}

// enlist enters new blocks of run r, from position lo on, into the directory, which finds
// blocks by hash. It does so only for a listed run, of which the directory has every block.
func (x *Index) enlist(r runs.ID, lo int) {
	if !x.runs.WriterState(r).Listed {
		return
	}
	hashes := x.arena.Hashes(x.runs.Head(r).Storage())
	x.growDirectory(len(hashes) - lo)
	for _, h := range hashes[lo:] { // so that the cache misses of all blocks overlap
		x.directory.Prefetch(kv.SequenceHash(h))
	}
	for i := lo; i < len(hashes); i++ {
		x.directory.Put(kv.SequenceHash(hashes[i]), runs.At(r, i))
	}
}

// unmark removes the blocks of run r from position lo on from the directory, which finds
// blocks by hash. It runs before these blocks leave the run.
func (x *Index) unmark(r runs.ID, lo int) {
	s := x.runs.WriterState(r)
	hashes := x.arena.Hashes(x.runs.Head(r).Storage())
	gone := s.Marks.And(runs.Span(lo, runs.MaxBlocks))
	if s.Listed { // the directory has every block of the run, not only the marked ones
		gone = runs.Span(lo, len(hashes))
		for _, h := range hashes[lo:] { // so that the cache misses of all blocks overlap
			x.directory.Prefetch(kv.SequenceHash(h))
		}
	}
	for !gone.Empty() {
		i := gone.Pop()
		x.directory.Delete(kv.SequenceHash(hashes[i]), runs.At(r, i))
	}
	s.Marks = s.Marks.And(runs.Span(0, lo))
}

// growDirectory makes room in the directory for n more blocks.
func (x *Index) growDirectory(n int) {
	if !x.directory.Fits(n) {
		x.directory = x.directory.Grown(n, x.mayGrow)
	}
}
