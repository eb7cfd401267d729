package index

import "github.com/blockyard-ai/blockyard/internal/kv"

// shortRow is the length of a row of blocks below which an event is taken for
// one that names its blocks in no order.
const shortRow = 4

// remove takes blocks from o in one tier. They usually come child before parent,
// so each is looked for just before the one that went before it.
func (x *Index) remove(o *owner, t kv.Tier, hashes []kv.SequenceHash) {
	at := o.removed
	for len(hashes) > 0 {
		p := at.place
		if !x.holds(p, hashes[0]) {
			x.spill(at)
			var ok bool
			if p, ok = x.find(o, hashes[0]); !ok {
				x.missing(o, t, hashes[0])
				hashes, at = hashes[1:], hint{}
				continue
			}
		}
		n := x.backwards(p, hashes)
		if n < shortRow && n < len(hashes) {
			at = x.removeScattered(o, t, hashes, p)
			break
		}
		lo := p.pos + 1 - n
		x.takeFrom(o, t, p.run, spanMask(lo, p.pos+1))
		at = x.before(place{p.run, lo})
		x.tend(p.run)
		hashes = hashes[n:]
	}
	o.removed = at
}

// takeFrom takes a set of blocks of a run from o.
func (x *Index) takeFrom(o *owner, t kv.Tier, r runID, set mask) {
	x.applied += set.count()
	gone := x.uncover(o, r, t, set)
	for left := set.without(gone); !left.empty(); {
		x.missing(o, t, x.hashAt(place{r, left.pop()}))
	}
}

// tend frees a run that is of no use any more, or has it looked at later.
func (x *Index) tend(r runID) {
	if s := x.runs.side(r); !s.live {
		return
	} else if s.held == 0 && s.firstChild == noRun {
		x.prune(r)
	} else {
		x.suspect(r)
	}
}

// scattered is the blocks of one run that an event removes.
type scattered struct {
	run runID
	set mask
}

// maxStrays is how many blocks in a row may not lie beside one another before
// removeScattered stops looking there, if the directory has them all.
const maxStrays = 8

// removeScattered removes blocks that come in no order: it finds them all, and
// then changes each run once. p is the first. The result is where the next event
// may go on.
func (x *Index) removeScattered(o *owner, t kv.Tier, hashes []kv.SequenceHash, p place) hint {
	batch := x.batch[:0]
	if x.dense {
		for _, h := range hashes {
			x.directory.prefetch(h)
		}
	}
	strays := 0 // how many of the last blocks were not beside one another
	for i, h := range hashes {
		if i > 0 {
			var next place
			ok := false
			if strays < maxStrays || !x.dense {
				next, ok = x.beside(p, h)
			}
			if strays++; ok {
				strays = 0
			} else if next, ok = x.find(o, h); !ok {
				x.missing(o, t, h)
				continue
			}
			p = next
		}
		s := x.runs.side(p.run)
		if int(s.batch) >= len(batch) || batch[s.batch].run != p.run {
			s.batch = int32(len(batch))
			batch = append(batch, scattered{run: p.run})
		}
		if b := &batch[s.batch]; b.set.has(p.pos) {
			x.missing(o, t, h)
		} else {
			b.set.set(p.pos)
		}
	}
	at := hint{}
	for _, b := range batch {
		x.takeFrom(o, t, b.run, b.set)
		at = x.before(place{b.run, b.set.first()})
	}
	for _, b := range batch {
		x.tend(b.run)
	}
	x.batch = batch
	return at
}

// beside is the block before or after p, if it has hash h.
func (x *Index) beside(p place, h kv.SequenceHash) (place, bool) {
	before := place{p.run, p.pos - 1}
	if p.pos == 0 {
		before = unpackPlace(x.runs.head(p.run).place.Load())
	}
	if x.holds(before, h) {
		return before, true
	}
	after := place{p.run, p.pos + 1}
	return after, x.holds(after, h)
}

// backwards is how many of the hashes are the blocks of a run from p towards its
// first block.
func (x *Index) backwards(p place, hashes []kv.SequenceHash) int {
	run := x.arena.hashes(x.runs.head(p.run).storage())[:p.pos+1]
	if len(hashes) > len(run) {
		hashes = hashes[:len(run)]
	}
	last := len(run) - 1
	for i, h := range hashes {
		if run[last-i] != word(h) {
			return i
		}
	}
	return len(hashes)
}

// before is the block before p with its hash; the zero hint when p is the first
// of its sequence, or follows a stand-in.
func (x *Index) before(p place) hint {
	if p.pos > 0 {
		p.pos--
	} else if p = unpackPlace(x.runs.head(p.run).place.Load()); p.run == rootRun || x.runs.side(p.run).standIn {
		return hint{}
	}
	return hint{p, x.hashAt(p)}
}

// missing takes a block that is not there from what o lost, or counts it.
func (x *Index) missing(o *owner, t kv.Tier, h kv.SequenceHash) {
	if o.lostPairs == 0 {
		x.counts.UnknownRemovals++
		return
	}
	o.lostDigest -= kv.Digest(h, t)
	o.lostPairs--
	x.lost--
}
