package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index/runs"
)

// TestTheTablesAgree: after any mixture of changes that come in runs, in pieces,
// backwards and without their parents, sparse or dense, with room and without,
// every run is found where it is linked, every entry is counted, the directory
// has what it should, and all memory is in use, idle or in limbo.
func TestTheTablesAgree(t *testing.T) {
	for seed := range uint64(12) {
		o := Options{MaxParked: 20}
		if seed%3 == 2 {
			o.MaxBytes = minBytes
		}
		x, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		m := mixture{x: x, rng: rand.New(rand.NewPCG(seed, 5))}
		for step := range 300 {
			m.change(t)
			switch {
			case seed%4 == 1 && step == 100:
				x.makeDirectoryDense()
			case seed%4 == 1 && step == 200:
				x.makeDirectorySparse()
			}
			if problem := x.disagreement(true); problem != "" {
				t.Fatalf("seed %d, step %d: %s", seed, step, problem)
			}
		}
		for n := range 5 {
			x.RemoveOwner(m.owner(n))
		}
		for x.Sweep(7) {
			if problem := x.disagreement(true); problem != "" {
				t.Fatalf("seed %d, sweeping: %s", seed, problem)
			}
		}
		if s := x.Stats(); s.Runs != 0 || s.Parked != 0 || s.Blocks != 0 || s.Memberships != 0 || x.blocksInRuns != 0 || s.Limbo != 0 {
			t.Fatalf("seed %d: nobody holds anything, and yet %+v", seed, s)
		}
	}
}

// TestNonsenseLeavesTheTablesInOrder: events whose hashes, parents and local hashes
// have nothing to do with one another, from few values and from many, may be
// refused, but what the index says of itself stays right.
func TestNonsenseLeavesTheTablesInOrder(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 77))
		x, err := New(Options{MaxBytes: []int64{0, minBytes, 2 * minBytes}[rng.IntN(3)], MaxParked: []int{0, 3, 50}[rng.IntN(3)]})
		if err != nil {
			t.Fatal(err)
		}
		n := nonsense{
			mixture: mixture{x: x, rng: rng}, hashes: []uint64{12, 200, 5000, 100_000}[rng.IntN(4)],
			locals: []uint64{2, 12, 1 << 40}[rng.IntN(3)], most: []int{3, 40, 300, 2000}[rng.IntN(4)],
		}
		var m Matches
		for step := range 300 {
			n.change(t)
			prompt := make([]kv.LocalHash, 20)
			for i := range prompt {
				prompt[i] = n.local(n.hash())
			}
			x.Match(&m, prompt, Reading(step%2))
			if step%10 > 0 {
				continue
			}
			if problem := x.disagreement(false); problem != "" {
				t.Fatalf("seed %d, step %d: %s", seed, step, problem)
			}
		}
		DumpAll(x, func(*kvevent.RouterEvent) bool { return true })
	}
}

// nonsense makes changes out of a few hashes.
type nonsense struct {
	mixture
	hashes, locals uint64
	most           int
}

func (n *nonsense) hash() kv.SequenceHash { return kv.SequenceHash(n.rng.Uint64N(n.hashes)) }

func (n *nonsense) local(h kv.SequenceHash) kv.LocalHash {
	return kv.LocalHash(uint64(h) * 7 % n.locals)
}

func (n *nonsense) event(o kv.Owner, kind kvevent.Kind) kvevent.RouterEvent {
	e := kvevent.RouterEvent{Owner: o, Kind: kind, Tier: kv.Tier(n.rng.IntN(kv.NumTiers)), Parent: n.hash(), HasParent: n.rng.IntN(2) == 0}
	h := n.hash()
	for range n.rng.IntN(n.most) {
		if h = (h + 1) % kv.SequenceHash(n.hashes); n.rng.IntN(30) == 0 {
			h = n.hash()
		}
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h, Local: n.local(h)})
		e.Removed = append(e.Removed, h)
	}
	return e
}

func (n *nonsense) change(t *testing.T) {
	o := n.owner(n.rng.IntN(5))
	switch k := n.rng.IntN(40); {
	case k < 18:
		n.apply(t, n.event(o, kvevent.Stored))
	case k < 32:
		e := n.event(o, kvevent.Removed)
		if k%2 == 0 {
			slices.Reverse(e.Removed)
		}
		n.apply(t, e)
	case k < 34:
		n.apply(t, kvevent.RouterEvent{Owner: o, Kind: kvevent.Cleared})
	case k < 37:
		var events []kvevent.RouterEvent
		for range n.rng.IntN(6) {
			events = append(events, n.event(o, kvevent.Stored))
		}
		if err := n.x.Replace(o, events); err != nil {
			t.Fatal(err)
		}
	case k < 39:
		n.x.Sweep(n.rng.IntN(50))
	case n.x.denseDirectory:
		n.x.makeDirectorySparse()
	default:
		n.x.makeDirectoryDense()
	}
}

// mixture makes changes of all kinds.
type mixture struct {
	x   *Index
	rng *rand.Rand
}

func (m *mixture) owner(n int) kv.Owner {
	if n == 4 {
		return kv.PoolOwner(1)
	}
	return kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(n + 1)})
}

// prompt is one of a few sequences that part from one another at odd places.
func (m *mixture) prompt() []kv.LocalHash {
	locals := make([]kv.LocalHash, 1+m.rng.IntN(500))
	branch, from := m.rng.IntN(3), []int{0, 77, 128, 200}[m.rng.IntN(4)]
	for i := range locals {
		locals[i] = kv.LocalHash(i)
		if i >= from {
			locals[i] += kv.LocalHash(1+branch) << 20
		}
	}
	return locals
}

func (m *mixture) change(t *testing.T) {
	locals := m.prompt()
	seq := kv.AppendSequence(nil, locals)
	lo := m.rng.IntN(len(seq))
	hi := lo + 1 + m.rng.IntN(len(seq)-lo)
	e := kvevent.RouterEvent{Owner: m.owner(m.rng.IntN(5)), Tier: kv.Tier(m.rng.IntN(kv.NumTiers))}
	switch kind := m.rng.IntN(20); {
	case kind == 0:
		e.Kind = kvevent.Cleared
	case kind < 3: // one by one, backwards
		for i := hi - 1; i >= max(lo, hi-60); i-- {
			m.apply(t, storedBlocks(e, locals, seq, i, i+1))
		}
		return
	case kind < 12:
		e = storedBlocks(e, locals, seq, lo, hi)
	default:
		e.Kind = kvevent.Removed
		for i := hi - 1; i >= lo; i-- {
			e.Removed = append(e.Removed, seq[i])
		}
		if kind == 19 {
			m.rng.Shuffle(len(e.Removed), func(i, j int) { e.Removed[i], e.Removed[j] = e.Removed[j], e.Removed[i] })
		}
	}
	m.apply(t, e)
}

func (m *mixture) apply(t *testing.T, e kvevent.RouterEvent) {
	t.Helper()
	if err := m.x.Apply(&e); err != nil {
		t.Fatal(err)
	}
}

// storedBlocks makes e store the blocks lo..hi-1 of a sequence.
func storedBlocks(e kvevent.RouterEvent, locals []kv.LocalHash, seq []kv.SequenceHash, lo, hi int) kvevent.RouterEvent {
	e.Kind, e.HasParent = kvevent.Stored, lo > 0
	if lo > 0 {
		e.Parent = seq[lo-1]
	}
	for i := lo; i < hi; i++ {
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: seq[i], Local: locals[i]})
	}
	return e
}

// disagreement says what is wrong between the tables; "" when nothing is. honest
// says that no two blocks were given one hash: then the directory has all that it
// should.
func (x *Index) disagreement(honest bool) string {
	inRuns, resident, live, marks := 0, 0, 0, 0
	entries := make(map[ownerID]int)
	pairs := make(map[ownerID]int)
	problem := ""
	x.runs.All(func(r runs.ID, h *runs.Head, s *runs.WriterState) bool {
		live++
		st := h.Storage()
		inRuns += st.Units()
		resident += st.Blocks()
		if marks += s.ListedInSparse.Count(); s.AllListed {
			marks += st.Blocks() - s.ListedInSparse.Count()
		}
		problem = x.wrongRun(r, h, s, honest)
		held := int32(0)
		for walk := x.runs.Slots(r); ; {
			slot := walk.Next()
			if slot == nil {
				break
			}
			e := entry(slot.Load())
			if e == 0 {
				continue
			}
			held++
			entries[e.owner()]++
			pairs[e.owner()] += e.hi() - e.lo()
			if e.lo() >= e.hi() || e.hi() > st.Blocks() {
				problem = fmt.Sprintf("run %d of %d blocks: entry %d..%d", r, st.Blocks(), e.lo(), e.hi())
			}
		}
		if held != s.EntryCount {
			problem = fmt.Sprintf("run %d: %d entries, counted %d", r, held, s.EntryCount)
		}
		return problem == ""
	})
	if problem != "" {
		return problem
	}
	if x.denseDirectory && x.nextUnlisted == runs.None && marks != resident {
		return fmt.Sprintf("dense, and %d of %d blocks are listed", marks, resident)
	}
	if !honest {
		marks = min(marks, x.directory.Len())
	}
	inLimbo := x.limbo.units
	for _, c := range []struct {
		what      string
		got, want int
	}{
		{"live runs", x.runs.Live, live},
		{"children", x.runs.Children(), live - 1 - x.unknownParents.Len()},
		{"resident blocks", x.blocksInRuns, resident},
		{"directory entries", x.directory.Len(), marks},
		{"idle units", x.arena.Idle(), x.arena.Units() - inRuns - inLimbo},
	} {
		if c.got != c.want {
			return fmt.Sprintf("%s: %d, want %d", c.what, c.got, c.want)
		}
	}
	for _, id := range x.ids {
		if o := x.owners[id]; o.entryCount != entries[id] || int(o.heldPairs) != pairs[id] {
			return fmt.Sprintf("%s: %d entries of %d pairs, counted %d of %d", o.who, entries[id], pairs[id], o.entryCount, o.heldPairs)
		}
	}
	return ""
}

// wrongRun checks how one run is linked and found.
func (x *Index) wrongRun(r runs.ID, h *runs.Head, s *runs.WriterState, honest bool) string {
	for c := s.FirstChild; c != runs.None; c = x.runs.WriterState(c).NextSibling {
		if p := runs.UnpackPlace(x.runs.Head(c).Parent.Load()); p.Run != r || !x.runs.WriterState(c).Live {
			return fmt.Sprintf("run %d: child %d is at %v", r, c, p)
		}
	}
	if r == runs.Root || s.StandIn {
		return ""
	}
	st := h.Storage()
	if st.Blocks() == 0 || s.EntryCount == 0 && s.FirstChild == runs.None {
		return fmt.Sprintf("run %d: %d blocks, %d entries, no child", r, st.Blocks(), s.EntryCount)
	}
	p := runs.UnpackPlace(h.Parent.Load())
	if got := x.runs.Child(p, x.arena.Locals(st)[0]); got != r {
		return fmt.Sprintf("run %d: %d is found in its place %v", r, got, p)
	}
	hashes := x.arena.Hashes(st)
	for i := range hashes {
		if got, ok := x.directory.Lookup(x.runs, kv.SequenceHash(hashes[i])); honest && (s.AllListed || s.ListedInSparse.Has(i)) && (!ok || got != runs.At(r, i)) {
			return fmt.Sprintf("run %d: block %d is not in the directory: %v", r, i, got)
		}
	}
	return ""
}
