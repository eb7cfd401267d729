package index

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// listHint enters the block of an owner's hint into the directory, if the block is still
// there. store and remove call it before they replace the hint: the next event that
// continues at the block must find the block without a scan.
func (x *Index) listHint(h hint) {
	if x.runs.HasHash(h.Place, h.hash) {
		x.listBlock(h.Place, h.hash)
	}
}

// lookup returns the block with hash h, for an event of owner o that names the block. It looks
// at o's last blocks and in the directory. ok is false when the block is not there.
func (x *Index) lookup(o *owner, h kv.SequenceHash) (p runs.Place, ok bool) {
	for _, near := range [...]*hint{&o.storeHint, &o.removeHint} {
		if near.hash == h && x.runs.HasHash(near.Place, h) {
			return near.Place, true
		}
	}
	p, ok = x.directory.Lookup(x.runs, h)
	if ok && x.denseDirectory {
		x.countSavedScan(o, p, ok)
	}
	return p, ok
}

// find returns the block with hash h, for an event of owner o that names the block. It looks
// at o's last blocks, then in the directory, then scans the runs. A dense directory, which
// has every block, saves the scan. ok is false when the index does not have the block.
func (x *Index) find(o *owner, h kv.SequenceHash) (p runs.Place, ok bool) {
	if p, ok = x.lookup(o, h); ok {
		return p, true
	}
	if x.denseDirectory && x.nextUnlisted == runs.None { // the directory's answer is final
		x.countSavedScan(o, p, false)
		return p, false
	}
	if x.denseDirectory { // the directory is still being filled
		x.fillDirectoryFaster()
		// A scan leaves out the blocks that fillDirectoryFaster has just entered.
		if p, ok = x.directory.Lookup(x.runs, h); ok {
			return p, true
		}
	}
	if p, ok = x.scan(o, h); ok {
		x.listBlock(p, h)
	}
	return p, ok
}

// fillDirectoryFaster enters 1/32 of all runs into a directory that becomes dense. find calls it before
// each scan. So one event with many unknown hashes makes at most about 32 scans.
func (x *Index) fillDirectoryFaster() {
	const share = 32
	for range 1 + int(x.runs.Unused)/share/listRuns {
		x.fillDirectory()
	}
}

// scan looks for the block with hash h without the directory: in the runs of owner o, then
// in all runs. It returns false when no run has the block. The work is linear in the blocks
// that it compares. scan counts them, because many expensive scans make the directory dense.
func (x *Index) scan(o *owner, h kv.SequenceHash) (runs.Place, bool) {
	x.counts.Scans++
	scanned := 0
	found := runs.Place{}
	look := func(r runs.ID, hd *runs.Head, s *runs.WriterState) (goOn bool) {
		st := hd.Storage()
		if !s.Live || s.AllListed || st.Blocks() == 0 { // of a listed run the directory has all blocks
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
	if !x.denseDirectory {
		x.countScan(scanned)
	}
	return found, found.Run != runs.None
}

// A scan costs a fraction of a nanosecond per block. An entry in a dense directory costs a cache
// miss when the block comes and another when the block goes.
const (
	// scanRatio is how many scanned blocks cost as much as one block in a dense directory.
	scanRatio = 24
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

// countScan counts a scan that compared a number of blocks, while the directory is sparse.
// It makes the directory dense when scans have cost more than entering every stored and
// removed block into a dense directory would have.
func (x *Index) countScan(scanned int) {
	c := &x.search
	c.scanned += scanned
	applied := x.changedBlocks - c.applied
	if c.scanned > scanRatio*applied+scanSlack {
		x.makeDirectoryDense()
	} else if applied > scanWindow { // old scans count less and less
		c.scanned /= 2
		c.applied += applied / 2
	}
}

// countSavedScan counts the blocks that find would have scanned without the dense
// directory, which has every block. o is the owner whose event named the block, and p the
// block that find returned, if found. The directory becomes sparse again, with only some
// blocks, when it saves less than a quarter of what it costs.
func (x *Index) countSavedScan(o *owner, p runs.Place, found bool) {
	c := &x.search
	if !found { // a scan of all blocks
		c.scanned += x.blocksInRuns
	} else if s := x.runs.WriterState(p.Run); !s.ListedInSparse.Has(p.Pos) {
		// A sparse directory would lack the block. A scan would have found the block among
		// the owner's blocks and listed it.
		c.scanned += int(o.heldPairs)
		s.ListedInSparse.Set(p.Pos)
	}
	applied := x.changedBlocks - c.applied
	if applied < scanSlack { // too early to tell
		return
	}
	if 4*c.scanned < scanRatio*applied {
		x.makeDirectorySparse()
	}
	*c = searchCost{applied: x.changedBlocks}
}

// makeDirectoryDense makes the directory find every block by its hash, so that nothing scans. New
// blocks are entered when they are stored. fillDirectory enters the existing blocks, a few
// runs at each change.
func (x *Index) makeDirectoryDense() {
	x.counts.DenseSwitches++
	x.search = searchCost{applied: x.changedBlocks}
	x.denseDirectory = true
	x.nextUnlisted = runs.Root + 1
	x.growDirectory(min(x.blocksInRuns+x.blocksInRuns/8, int(x.arena.Units())*runs.UnitBlocks))
}

// listRuns is the number of runs that each change enters into a directory that becomes dense.
const listRuns = 256

// fillDirectory enters the blocks of the next listRuns runs into a directory that becomes
// dense. Each change calls it, so that no change waits for the whole index.
func (x *Index) fillDirectory() {
	if x.nextUnlisted == runs.None {
		return
	}
	for end := min(x.nextUnlisted+listRuns, x.runs.Unused); x.nextUnlisted < end; x.nextUnlisted++ {
		s := x.runs.WriterState(x.nextUnlisted)
		if !s.Live || s.AllListed {
			continue
		}
		s.AllListed = true
		hashes := x.arena.Hashes(x.runs.Head(x.nextUnlisted).Storage())
		x.growDirectory(len(hashes))
		// The directory has these blocks already.
		for left := runs.Span(0, len(hashes)).Without(s.ListedInSparse); !left.Empty(); {
			i := left.Pop()
			x.directory.Put(kv.SequenceHash(hashes[i]), runs.At(x.nextUnlisted, i))
		}
	}
	if x.nextUnlisted >= x.runs.Unused {
		x.nextUnlisted = runs.None
	}
}

// makeDirectorySparse replaces a dense directory, which has every block, by one that has only
// the blocks where events have begun or ended.
func (x *Index) makeDirectorySparse() {
	x.counts.DenseSwitches++
	x.denseDirectory, x.nextUnlisted = false, runs.None
	x.directory = runs.NewDirectory(0)
	x.runs.All(func(r runs.ID, h *runs.Head, state *runs.WriterState) bool {
		state.AllListed = false
		if s := h.Storage(); s.Blocks() > 0 {
			hashes := x.arena.Hashes(s)
			x.growDirectory(state.ListedInSparse.Count())
			for listed := state.ListedInSparse; !listed.Empty(); {
				i := listed.Pop()
				x.directory.Put(kv.SequenceHash(hashes[i]), runs.At(r, i))
			}
		}
		return true
	})
}

// listBlock makes the directory find the block at p, which has hash h, also while the directory
// is sparse. Blocks where an event may continue are listed: only their hash leads there.
func (x *Index) listBlock(p runs.Place, h kv.SequenceHash) {
	s := x.runs.WriterState(p.Run)
	if s.ListedInSparse.Has(p.Pos) {
		return
	}
	s.ListedInSparse.Set(p.Pos)
	if !s.AllListed { // of a listed run the directory has all blocks already
		x.growDirectory(1)
		x.directory.Put(h, p)
	}
}

// listNewBlocks enters the blocks that were appended to run r, from position lo on, into the directory. A sparse
// directory has only those blocks of most runs where an event may continue, so that new blocks of such a run
// get no entry. A run whose earlier blocks are all listed stays listed whole.
func (x *Index) listNewBlocks(r runs.ID, lo int) {
	if !x.runs.WriterState(r).AllListed {
		return
	}
	hashes := x.arena.Hashes(x.runs.Head(r).Storage())
	x.growDirectory(len(hashes) - lo)
	if len(hashes) > lo+1 { // so that the cache misses of all blocks overlap
		for _, h := range hashes[lo:] {
			x.directory.Prefetch(kv.SequenceHash(h))
		}
	}
	for i := lo; i < len(hashes); i++ {
		x.directory.Put(kv.SequenceHash(hashes[i]), runs.At(r, i))
	}
}

// unlist removes the blocks of run r from position lo on from the directory, before they leave the run.
func (x *Index) unlist(r runs.ID, lo int) {
	s := x.runs.WriterState(r)
	hashes := x.arena.Hashes(x.runs.Head(r).Storage())
	gone := s.ListedInSparse.And(runs.Span(lo, runs.MaxBlocks))
	if s.AllListed { // the directory has every block of the run, not only those of a sparse one
		gone = runs.Span(lo, len(hashes))
		for _, h := range hashes[lo:] { // so that the cache misses of all blocks overlap
			x.directory.Prefetch(kv.SequenceHash(h))
		}
	}
	for !gone.Empty() {
		i := gone.Pop()
		x.directory.Delete(kv.SequenceHash(hashes[i]), runs.At(r, i))
	}
	s.ListedInSparse = s.ListedInSparse.And(runs.Span(0, lo))
}

// growDirectory makes room in the directory for n more blocks.
func (x *Index) growDirectory(n int) {
	if !x.directory.Fits(n) {
		x.directory = x.directory.Grown(n, x.mayGrow)
	}
}
