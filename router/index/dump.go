package index

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// maxDumpBlocks is how many blocks one event of a dump has at most.
const maxDumpBlocks = 4096

// Dump visits what every owner holds, ordered by owner, as DumpOwner does. Two
// owners may be seen at different moments.
func (x *Index) Dump(visit func(e *kvevent.RouterEvent) bool) {
	x.mu.Lock()
	list := make([]kv.Owner, 0, len(x.ids))
	for who := range x.ids {
		list = append(list, who)
	}
	x.mu.Unlock()
	slices.SortFunc(list, kv.Owner.Compare)
	for _, who := range list {
		if !x.dumpOwner(who, visit) {
			return
		}
	}
}

// DumpOwner visits what one owner held at one moment, as stored events with ids
// from 1: tier by tier, parents before children, siblings in the order of their
// hashes, and no more events than branches need. What it shows depends on
// what is held alone, so that a dump applied to an empty index gives the same
// dump. The event is the visitor's until it returns; it may use the index, and
// ends the dump by returning false.
func (x *Index) DumpOwner(who kv.Owner, visit func(e *kvevent.RouterEvent) bool) {
	x.dumpOwner(who, visit)
}

func (x *Index) dumpOwner(who kv.Owner, visit func(e *kvevent.RouterEvent) bool) bool {
	e := kvevent.RouterEvent{Owner: who, Kind: kvevent.Stored}
	for t, held := range x.heldBy(who) {
		e.Tier = kv.Tier(t)
		f := newForest(held)
		if !f.walk(&e, visit) {
			return false
		}
	}
	return true
}

// strip is an unbroken row of blocks of one run that an owner holds.
type strip struct {
	first  place
	blocks []kvevent.StoredBlock
	// parent is the block before the first; of a stand-in or the root only the
	// hash says which.
	parent     place
	parentHash kv.SequenceHash
	hasParent  bool
}

// heldBy copies what an owner holds, by tier, in the order of runs.
func (x *Index) heldBy(who kv.Owner) (held [kv.NumTiers][]strip) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id, ok := x.ids[who]
	if !ok {
		return held
	}
	runs := slices.Clone(x.owners[id].runs)
	slices.Sort(runs)
	for _, r := range slices.Compact(runs) {
		if !x.runs.side(r).live {
			continue
		}
		var masks [kv.NumTiers]mask
		for walk := x.slots(r); ; {
			slot := walk.next()
			if slot == nil {
				break
			}
			if e := entry(slot.Load()); e.owner() == id {
				masks[e.tier()] = masks[e.tier()].or(e.mask())
			}
		}
		for t := range masks {
			for !masks[t].empty() {
				lo, hi := masks[t].popSpan()
				held[t] = append(held[t], x.strip(r, lo, hi))
			}
		}
	}
	return held
}

func (x *Index) strip(r runID, lo, hi int) strip {
	h := x.runs.head(r)
	s := strip{first: place{r, lo}, parent: place{r, lo - 1}, blocks: make([]kvevent.StoredBlock, hi-lo)}
	locals, hashes := x.arena.locals(h.storage()), x.arena.hashes(h.storage())
	for i := range s.blocks {
		s.blocks[i] = kvevent.StoredBlock{Hash: kv.SequenceHash(hashes[lo+i]), Local: locals[lo+i]}
	}
	if lo == 0 {
		s.parent = unpackPlace(h.place.Load())
	}
	if s.parent.run != rootRun {
		s.parentHash, s.hasParent = x.hashAt(s.parent), true
	}
	return s
}

// forest is what an owner holds in one tier, as trees of pieces: strips, cut
// where something branches off.
type forest struct {
	pieces []piece
	roots  []int
}

type piece struct {
	strip
	children []int
}

func newForest(strips []strip) *forest {
	f := &forest{}
	// cuts are the blocks that the first block of a strip follows.
	cuts := make(map[place]bool)
	for i := range strips {
		cuts[strips[i].parent] = true
	}
	ends := make(map[place]int)
	for _, s := range strips {
		for from, i := 0, 0; i < len(s.blocks); i++ {
			at := place{s.first.run, s.first.pos + i}
			if !cuts[at] && i+1 < len(s.blocks) {
				continue
			}
			p := piece{strip: s}
			p.blocks = s.blocks[from : i+1]
			if from > 0 {
				p.parent = place{at.run, s.first.pos + from - 1}
				p.parentHash, p.hasParent = s.blocks[from-1].Hash, true
			}
			ends[at] = len(f.pieces)
			f.pieces = append(f.pieces, p)
			from = i + 1
		}
	}
	for i := range f.pieces {
		if parent, ok := ends[f.pieces[i].parent]; ok {
			f.pieces[parent].children = append(f.pieces[parent].children, i)
		} else {
			f.roots = append(f.roots, i)
		}
	}
	f.order(f.roots)
	for i := range f.pieces {
		f.order(f.pieces[i].children)
	}
	return f
}

// order sorts siblings backwards, because walk takes them from the end.
func (f *forest) order(list []int) {
	slices.SortFunc(list, func(a, b int) int {
		p, q := &f.pieces[a], &f.pieces[b]
		return cmp.Or(cmp.Compare(q.parentHash, p.parentHash), cmp.Compare(q.blocks[0].Hash, p.blocks[0].Hash))
	})
}

// walk visits the forest, each chain without branches as one event.
func (f *forest) walk(e *kvevent.RouterEvent, visit func(e *kvevent.RouterEvent) bool) bool {
	stack := f.roots
	var blocks []kvevent.StoredBlock
	for len(stack) > 0 {
		p := &f.pieces[stack[len(stack)-1]]
		stack = stack[:len(stack)-1]
		e.Parent, e.HasParent = p.parentHash, p.hasParent
		blocks = append(blocks[:0], p.blocks...)
		for len(p.children) == 1 {
			p = &f.pieces[p.children[0]]
			blocks = append(blocks, p.blocks...)
		}
		stack = append(stack, p.children...)
		for chunk := range slices.Chunk(blocks, maxDumpBlocks) {
			e.ID++
			e.Blocks = chunk
			if !visit(e) {
				return false
			}
			e.Parent, e.HasParent = chunk[len(chunk)-1].Hash, true
		}
	}
	return true
}
