package index

import "github.com/blockyard-ai/blockyard/internal/kv"

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
		lo, hi := p.pos+1-n, p.pos+1
		gone := x.uncover(o, p.run, t, lo, hi)
		for left := spanMask(lo, hi).without(gone); !left.empty(); {
			x.missing(o, t, hashes[p.pos-left.pop()])
		}
		x.applied += n
		hashes = hashes[n:]
		at = x.before(place{p.run, lo})
		if s := x.runs.side(p.run); s.held == 0 && s.firstChild == noRun {
			x.prune(p.run)
		} else {
			x.suspect(p.run)
		}
	}
	o.removed = at
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
	} else if p = unpackPlace(x.runs.head(p.run).place.Load()); p.run == rootRun || x.runs.side(p.run).stub {
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
