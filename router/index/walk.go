package index

import (
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// walkRuns and walkRows bound what Walk copies under the lock at a time; one run
	// may have more rows. walkScan bounds the runs that Walk looks at meanwhile.
	walkRuns = 64
	walkRows = 4096
	walkScan = 4096
)

// Walk visits what owners hold as stored events with ids from 0: one for each
// unbroken row of blocks that an owner holds in one tier of a run, parents before
// children. The event is the visitor's until it returns; the visitor may use the
// index, and ends the walk by returning false.
//
// Walk copies a few runs at a time and lets the lock go between, so that no
// writer waits for it and it takes little memory. What changes meanwhile may be
// missing. The events of an index at rest, applied to an empty one, make it equal.
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
}

// walker is one Walk. It is for one goroutine.
type walker struct {
	x *Index
	// next is the run to look at next, and pending has runs that come before it,
	// the last of them first. begun has a bit for each run that is or was pending.
	next    runID
	pending []runID
	begun   []uint64
	// runs and rows are what was copied last.
	runs  []walkedRun
	rows  []walkedRow
	event kvevent.RouterEvent
}

// walkedRun is a copy of the blocks of a run.
type walkedRun struct {
	blocks []kvevent.StoredBlock
	// parent is the block before the first; of a stand-in the hash says which.
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

// copySome copies the runs that come next; false when there are none left.
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
		if w.next >= x.runs.unused {
			return len(w.runs) > 0
		}
		w.begin(w.next)
		w.next++
		scanned++
	}
	return true
}

// begin makes a run pending, and then those before it in the tree.
func (w *walker) begin(r runID) {
	x := w.x
	for r > rootRun && x.runs.side(r).live && !x.runs.side(r).standIn {
		for int(r>>6) >= len(w.begun) {
			w.begun = append(w.begun, 0)
		}
		if bit := uint64(1) << (r & 63); w.begun[r>>6]&bit == 0 {
			w.begun[r>>6] |= bit
		} else {
			return
		}
		w.pending = append(w.pending, r)
		r = unpackPlace(x.runs.head(r).place.Load()).run
	}
}

func (w *walker) copyRun(r runID) {
	x := w.x
	if s := x.runs.side(r); !s.live || s.standIn {
		return // It was freed while the lock was let go.
	}
	h := x.runs.head(r)
	st := h.storage()
	locals, hashes := x.arena.locals(st), x.arena.hashes(st)
	at := len(w.runs)
	w.runs = slices.Grow(w.runs, 1)[:at+1] // what an earlier slice left has room for blocks
	run := &w.runs[at]
	*run = walkedRun{blocks: slices.Grow(run.blocks[:0], st.blocks())}
	for i := range st.blocks() {
		run.blocks = append(run.blocks, kvevent.StoredBlock{Hash: kv.SequenceHash(hashes[i]), Local: locals[i]})
	}
	if p := unpackPlace(h.place.Load()); p.run != rootRun {
		run.parent, run.hasParent = x.hashAt(p), true
	}
	first := len(w.rows)
	for walk := x.slots(r); ; {
		slot := walk.next()
		if slot == nil {
			break
		}
		if e := entry(slot.Load()); e != 0 && !x.owners[e.owner()].gone {
			w.rows = append(w.rows, walkedRow{at, e.lo(), e.hi(), x.owners[e.owner()].who, e.tier()})
		}
	}
	slices.SortFunc(w.rows[first:], func(a, b walkedRow) int { return a.lo - b.lo })
}

// show is a row as an event.
func (w *walker) show(r *walkedRow) *kvevent.RouterEvent {
	run, e := &w.runs[r.run], &w.event
	e.Owner, e.Tier, e.Blocks = r.who, r.tier, run.blocks[r.lo:r.hi]
	e.Parent, e.HasParent = run.parent, run.hasParent
	if r.lo > 0 {
		e.Parent, e.HasParent = run.blocks[r.lo-1].Hash, true
	}
	return e
}
