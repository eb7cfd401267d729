package index

import (
	"cmp"
	"math"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// maxDumpBlocks is the most blocks in one event of a dump.
const maxDumpBlocks = 4096

// DumpOwner visits the blocks of one owner at one moment, as stored events with ids
// from 1. The order is tier by tier, parents before children, siblings by hash,
// with as few events as branches allow. The blocks of other KV groups than the primary one
// come last. The events depend only on the blocks, so
// a dump applied to an empty index gives the same dump. The event is valid until
// visit returns. visit may use the index, and ends the dump by returning false.
func (x *Index) DumpOwner(who kv.Owner, visit func(e *kvevent.RouterEvent) bool) {
	e := kvevent.RouterEvent{Owner: who, Kind: kvevent.Stored}
	for t, strips := range x.stripsOf(who, math.MaxInt) {
		e.Tier = kv.Tier(t)
		f := newForest(strips)
		if !f.walk(&e, visit) {
			return
		}
	}
	for _, list := range x.sparseEvents(who) {
		if list.ID = e.ID + 1; !visit(&list) {
			return
		}
		e.ID++
	}
}

// sparseEvents returns the blocks of other KV groups than the primary one at one moment, as stored
// events: those of one owner, or of all owners for the zero Owner, which is no owner.
func (x *Index) sparseEvents(of kv.Owner) []kvevent.RouterEvent {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sparse.Events(maxDumpBlocks, func(owner uint32) (kv.Owner, bool) {
		o := x.owners[owner]
		return o.who, !o.retired && (of == kv.Owner{} || of == o.who)
	})
}

// VisitOwner visits blocks of the primary KV group of one owner at one moment, in any order, until it
// has visited about most blocks.
func (x *Index) VisitOwner(who kv.Owner, most int, visit func(t kv.Tier, blocks []kvevent.StoredBlock)) {
	for t, strips := range x.stripsOf(who, most) {
		for i := range strips {
			visit(kv.Tier(t), strips[i].blocks)
		}
	}
}

// strip is a copy of consecutive blocks of one run that an owner holds in one tier.
type strip struct {
	first  runs.Place
	blocks []kvevent.StoredBlock
	// parent is the block before the first one. For a stand-in or the root only
	// parentHash identifies it.
	parent     runs.Place
	parentHash kv.SequenceHash
	hasParent  bool
}

// stripsOf returns a copy of the blocks of an owner at one moment, at least most blocks if the owner
// has so many: for each tier a list of strips, rows of consecutive blocks of one run. The result is
// empty for an unknown owner.
func (x *Index) stripsOf(who kv.Owner, most int) (strips [kv.NumTiers][]strip) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id, ok := x.ids[who]
	if !ok {
		return strips
	}
	// owner.runs may name a run twice, and runs that were freed.
	list := slices.Clone(x.owners[id].runs)
	slices.Sort(list)
	for _, r := range slices.Compact(list) {
		if most <= 0 || !x.runs.WriterState(r).Live {
			continue
		}
		var masks [kv.NumTiers]runs.Mask
		walk := x.runs.Slots(r)
		for slot := walk.Next(); slot != nil; slot = walk.Next() {
			if e := entry(slot.Load()); e.owner() == id {
				masks[e.tier()] = masks[e.tier()].Or(e.mask())
			}
		}
		for t := range masks {
			for !masks[t].Empty() {
				lo, hi := masks[t].PopSpan()
				strips[t] = append(strips[t], x.strip(r, lo, hi))
				most -= hi - lo
			}
		}
	}
	return strips
}

// strip returns a copy of the blocks lo..hi-1 of run r. The caller holds x.mu.
func (x *Index) strip(r runs.ID, lo, hi int) strip {
	h := x.runs.Head(r)
	s := strip{first: runs.At(r, lo), parent: runs.At(r, lo-1), blocks: make([]kvevent.StoredBlock, hi-lo)}
	locals, hashes := x.arena.Locals(h.Storage()), x.arena.Hashes(h.Storage())
	for i := range s.blocks {
		s.blocks[i] = kvevent.StoredBlock{Hash: kv.SequenceHash(hashes[lo+i]), Local: locals[lo+i]}
	}
	if lo == 0 { // the run's first block follows a block of another run
		s.parent = runs.UnpackPlace(h.Parent.Load())
	}
	if s.parent.Run != runs.Root { // the root stands before the first block of a prompt
		s.parentHash, s.hasParent = x.hashAt(s.parent), true
	}
	return s
}

// forest has the blocks of an owner in one tier, as trees of pieces. A piece is a strip
// that ends where another piece branches off.
type forest struct {
	pieces []piece
	roots  []int
}

type piece struct {
	strip
	children []int
}

// newForest orders an owner's blocks of one tier as trees, for walk. It cuts each strip, a
// row of blocks, after every block that another strip follows. Each piece is then the child
// of the piece that ends with its parent block, or a root.
func newForest(strips []strip) *forest {
	f := &forest{}
	// cuts are the blocks after which a strip begins, so pieces must end there.
	cuts := make(map[runs.Place]bool)
	for i := range strips {
		cuts[strips[i].parent] = true
	}
	ends := make(map[runs.Place]int) // the piece that ends with a block
	for _, s := range strips {
		for from, i := 0, 0; i < len(s.blocks); i++ {
			at := runs.At(s.first.Run, s.first.Pos+i)
			if !cuts[at] && i+1 < len(s.blocks) {
				continue
			}
			p := piece{strip: s}
			p.blocks = s.blocks[from : i+1]
			if from > 0 {
				p.parent = runs.At(at.Run, s.first.Pos+from-1)
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

// walk visits the blocks of the forest as stored events, parents before children. A chain
// without branches is one event, or several of maxDumpBlocks blocks. e has the owner and the
// tier; walk fills in the rest and reuses e. walk returns false once visit has.
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

const (
	// walkRuns and walkRows bound what Walk copies under one lock. One run may
	// exceed walkRows. walkScan bounds the runs that Walk looks at under one lock.
	walkRuns = 64
	walkRows = 4096
	walkScan = 4096
)

// Walk visits the blocks of all owners as stored events with ids from 0, parents before
// children. There is one event for each unbroken row of blocks that an owner holds
// in one tier of a run, and then those of other KV groups than the primary one. The event is valid until visit returns. visit may use the
// index, and ends the walk by returning false.
//
// Walk copies a few runs at a time and releases the lock in between, so that writers do
// not wait and the copy stays small. Changes during the walk may be missing. The events
// of an index at rest, applied to an empty index, make an equal index.
func (x *Index) Walk(visit func(e *kvevent.RouterEvent) bool) {
	w := walker{x: x, event: kvevent.RouterEvent{Kind: kvevent.Stored}}
	for w.copySome() {
		for i := range w.rows {
			if !visit(w.show(&w.rows[i])) {
				return
			}
			w.event.ID++
		}
	}
	for _, list := range x.sparseEvents(kv.Owner{}) {
		if list.ID = w.event.ID; !visit(&list) {
			return
		}
		w.event.ID++
	}
}

// walker is one Walk, for one goroutine.
type walker struct {
	x *Index
	// next is the run to look at next. pending has runs that come before next, the
	// last one first. pushed has a bit for each run that is or was pending.
	next    runs.ID
	pending []runs.ID
	pushed  []uint64
	// runs and rows are the latest copy.
	runs  []walkedRun
	rows  []walkedRow
	event kvevent.RouterEvent
}

// walkedRun is a copy of the blocks of a run.
type walkedRun struct {
	blocks []kvevent.StoredBlock
	// parent is the block before the first one.
	parent    kv.SequenceHash
	hasParent bool
}

// walkedRow says that an owner holds the blocks lo..hi-1 of a walkedRun in a tier.
type walkedRow struct {
	run    int
	lo, hi int
	who    kv.Owner
	tier   kv.Tier
}

// copySome copies the blocks of the next runs into w.runs, and who holds them into w.rows. A
// parent comes before its children. The bounds walkRuns, walkRows and walkScan keep the lock
// short. copySome returns false when no run is left.
func (w *walker) copySome() bool {
	w.runs, w.rows = w.runs[:0], w.rows[:0]
	x := w.x
	x.mu.Lock()
	defer x.mu.Unlock()
	for scanned := 0; scanned < walkScan && len(w.runs) < walkRuns && len(w.rows) < walkRows; {
		if n := len(w.pending); n > 0 {
			r := w.pending[n-1]
			w.pending = w.pending[:n-1]
			w.copyRun(r)
			continue
		}
		if w.next >= x.runs.Unused {
			return len(w.runs) > 0
		}
		w.pushWithAncestors(w.next)
		w.next++
		scanned++
	}
	return true
}

// pushWithAncestors makes run r and its ancestors pending. Walk takes them from the end, so it
// visits the ancestors first. w.pushed has a bit for each run that was ever pending. The caller
// holds the index's lock.
func (w *walker) pushWithAncestors(r runs.ID) {
	x := w.x
	// A stand-in takes the place of an unknown parent and has no blocks to visit.
	for r > runs.Root && x.runs.WriterState(r).Live && !x.runs.WriterState(r).StandIn {
		for int(r>>6) >= len(w.pushed) {
			w.pushed = append(w.pushed, 0)
		}
		bit := uint64(1) << (r & 63)
		if w.pushed[r>>6]&bit != 0 {
			return
		}
		w.pushed[r>>6] |= bit
		w.pending = append(w.pending, r)
		r = runs.UnpackPlace(x.runs.Head(r).Parent.Load()).Run
	}
}

// copyRun appends the blocks of run r to w.runs. It appends a row to w.rows for each entry:
// an owner that holds some of the blocks in one tier. The rows are ordered by first block.
// The caller holds the index's lock.
func (w *walker) copyRun(r runs.ID) {
	x := w.x
	if s := x.runs.WriterState(r); !s.Live || s.StandIn {
		return // The run was freed while the lock was released.
	}
	h := x.runs.Head(r)
	st := h.Storage()
	locals, hashes := x.arena.Locals(st), x.arena.Hashes(st)
	at := len(w.runs)
	w.runs = slices.Grow(w.runs, 1)[:at+1] // the memory of an earlier copy is used again
	run := &w.runs[at]
	*run = walkedRun{blocks: slices.Grow(run.blocks[:0], st.Blocks())}
	for i := range st.Blocks() {
		run.blocks = append(run.blocks, kvevent.StoredBlock{Hash: kv.SequenceHash(hashes[i]), Local: locals[i]})
	}
	if p := runs.UnpackPlace(h.Parent.Load()); p.Run != runs.Root {
		run.parent, run.hasParent = x.hashAt(p), true
	}
	first := len(w.rows)
	walk := x.runs.Slots(r)
	for slot := walk.Next(); slot != nil; slot = walk.Next() {
		// The entries of a retired owner no longer count.
		if e := entry(slot.Load()); e != 0 && !x.owners[e.owner()].retired {
			w.rows = append(w.rows, walkedRow{at, e.lo(), e.hi(), x.owners[e.owner()].who, e.tier()})
		}
	}
	slices.SortFunc(w.rows[first:], func(a, b walkedRow) int { return a.lo - b.lo })
}

// show returns a row, the blocks that one owner holds in one tier of a run, as a stored
// event. The event is w.event, valid until the next call.
func (w *walker) show(r *walkedRow) *kvevent.RouterEvent {
	run, e := &w.runs[r.run], &w.event
	e.Owner, e.Tier, e.Blocks = r.who, r.tier, run.blocks[r.lo:r.hi]
	e.Parent, e.HasParent = run.parent, run.hasParent
	if r.lo > 0 {
		e.Parent, e.HasParent = run.blocks[r.lo-1].Hash, true
	}
	return e
}
