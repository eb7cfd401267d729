package index

import "github.com/blockyard-ai/blockyard/internal/kv"

// orphans are the unknown parents that blocks wait for. Each has a run without
// blocks as its stand-in: what follows it is not reachable from the root until
// the parent comes.
type orphans struct {
	byHash map[kv.SequenceHash]runID
	hashOf map[runID]kv.SequenceHash
	// filter has a bit for each parent, so that new blocks are looked up in
	// byHash only when they may be one.
	filter [1 << 10]uint64
}

func newOrphans() orphans {
	return orphans{byHash: make(map[kv.SequenceHash]runID), hashOf: make(map[runID]kv.SequenceHash)}
}

func (o *orphans) bit(h kv.SequenceHash) (*uint64, uint64) {
	v := mixHash(h) >> 48
	return &o.filter[v>>6], 1 << (v & 63)
}

// awaited is the stand-in for a block that somebody waits for.
func (o *orphans) awaited(h kv.SequenceHash) runID {
	if w, bit := o.bit(h); *w&bit == 0 {
		return noRun
	}
	return o.byHash[h]
}

// standIn is the place that children of the unknown block h are put behind;
// false when there are too many such blocks.
func (x *Index) standIn(h kv.SequenceHash) (place, bool) {
	if r := x.orphans.awaited(h); r != noRun {
		return place{r, 0}, true
	}
	if len(x.orphans.byHash) >= x.options.MaxParked && !x.replacing {
		return place{}, false
	}
	r := x.runs.take(x.mayGrow)
	if r == noRun {
		return place{}, false
	}
	x.runs.side(r).stub = true
	x.orphans.byHash[h], x.orphans.hashOf[r] = r, h
	w, bit := x.orphans.bit(h)
	*w |= bit
	return place{r, 0}, true
}

// dropStub forgets a stand-in that nothing follows.
func (x *Index) dropStub(r runID) {
	delete(x.orphans.byHash, x.orphans.hashOf[r])
	delete(x.orphans.hashOf, r)
	if len(x.orphans.byHash) == 0 {
		clear(x.orphans.filter[:])
	}
	x.giveRun(r)
}

// untilAwaited is how many of the blocks, all of them new, come before and with
// the first that others wait for.
func (x *Index) untilAwaited(n int, hash func(i int) kv.SequenceHash) int {
	if len(x.orphans.byHash) == 0 {
		return n
	}
	for i := range n {
		if x.orphans.awaited(hash(i)) != noRun {
			return i + 1
		}
	}
	return n
}

// adopt puts what waited for block p, which is new, behind it.
func (x *Index) adopt(p place, h kv.SequenceHash) {
	if len(x.orphans.byHash) == 0 {
		return
	}
	stub := x.orphans.awaited(h)
	if stub == noRun || x.top(p.run) == stub {
		return // a block that follows itself is nobody's parent
	}
	for c := x.runs.side(stub).firstChild; c != noRun; c = x.runs.side(stub).firstChild {
		x.detach(c)
		x.attach(c, p)
		x.counts.Spliced++
	}
	x.dropStub(stub)
}

// top is the root or stand-in from which run r hangs.
func (x *Index) top(r runID) runID {
	for r != rootRun && !x.runs.side(r).stub {
		r = unpackPlace(x.runs.head(r).place.Load()).run
	}
	return r
}
