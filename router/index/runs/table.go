package runs

import "sync/atomic"

// MaxBlocks is the most blocks that a run holds. Longer runs would make holes and
// cuts dearer, shorter ones would make more work for each event.
const MaxBlocks = 128

// ID names a run. None is no run. Root stands before every first block.
type ID uint32

// The reserved runs.
const (
	None ID = 0
	Root ID = 1
)

// idBits is the number of bits that the tables leave for an ID.
const idBits = 28

// Place names a block by its run and its position Pos in the run. The root and the
// stand-ins for unknown parents have no blocks. Their place has position 0.
type Place struct {
	Run ID
	Pos int
}

// At returns position pos of run r.
func At(r ID, pos int) Place { return Place{r, pos} }

// Pack returns the place as one word.
func (p Place) Pack() uint64 { return uint64(p.Run)<<8 | uint64(p.Pos) }

// UnpackPlace returns the place of a packed word.
func UnpackPlace(v uint64) Place { return Place{ID(v >> 8), int(v & 0xff)} }

// Head is the part of a run that readers need, in one cache line. The zero value is
// a run without blocks.
type Head struct {
	// Parent is the packed Place of the block that the run follows.
	Parent atomic.Uint64
	// Store is the word of the run's Storage; see Head.Storage.
	Store atomic.Uint64
	// NextGuess is a child that once followed the run's last block. Readers try it before they
	// search the table of children, and verify the guess.
	NextGuess atomic.Uint32
	// Flags is a set of FlagSeen and FlagOverflow.
	Flags atomic.Uint32
	// Entries say who holds the run. With FlagOverflow there are more in an Overflow.
	Entries [InlineEntries]atomic.Uint64
}

// InlineEntries is the number of entries in a head.
const InlineEntries = 5

// Flags of a run.
const (
	FlagSeen     uint32 = 1 << iota // a reader or a store has touched the run since the eviction clock did
	FlagOverflow                    // there are entries in overflow
)

// Storage returns where the blocks of the run lie.
func (h *Head) Storage() Storage { return Storage(h.Store.Load()) }

// Overflow holds entries that do not fit into the head. Nodes are only appended,
// and do not move while the run lives.
type Overflow struct {
	Next    atomic.Pointer[Overflow]
	Entries [overflowEntries]atomic.Uint64
}

// overflowEntries makes a node four cache lines.
const overflowEntries = 31

// WriterState is the part of a run that only the writer needs. No reader touches a WriterState.
type WriterState struct {
	FirstChild, NextSibling, PrevSibling ID
	// ListedInSparse are the blocks that a sparse directory has.
	ListedInSparse Mask
	// EntryCount is the number of entries in use.
	EntryCount int32
	// BatchIndex is the index of the run in the batch of the current or an earlier removal.
	BatchIndex int32
	// Live is true between Take and Drop. StandIn is true for the stand-in of an
	// unknown parent, QueuedForShrink while the run waits to be checked for unused
	// blocks, AllListed when all its blocks are in the directory.
	Live, StandIn, QueuedForShrink, AllListed bool
}

// Chunk is memory for runs, by number within the chunk.
type Chunk struct {
	Heads    []Head
	states   []WriterState
	Overflow []atomic.Pointer[Overflow]
}

// Table holds runs. Chunks never move.
type Table struct {
	chunks atomic.Pointer[[]*Chunk]
	shift  uint
	// Unused is the first run that was never taken.
	Unused ID
	free   []ID
	// Live is the number of runs in use, the root included.
	Live int
	// OverflowBytes is the memory of all overflow nodes.
	OverflowBytes int64
	// oversized is true when the last AddSlots may have given a run more slots than
	// the run needs.
	oversized bool
}

// RunBytes is the memory of a run without its blocks.
const RunBytes = 64 + 44 + 8

func (t *Table) init(shift uint) {
	t.shift, t.Unused = shift, Root
	t.chunks.Store(new([]*Chunk))
}

// Bytes returns the memory of the table without overflow.
func (t *Table) Bytes() int64 { return int64(len(*t.chunks.Load())) << t.shift * RunBytes }

// ChunkRuns returns the number of runs in a chunk.
func (t *Table) ChunkRuns() int64 { return 1 << t.shift }

// Idle returns the number of runs that can be taken without growth.
func (t *Table) Idle() int {
	return len(t.free) + len(*t.chunks.Load())<<t.shift - int(t.Unused)
}

// Chunks returns all chunks. Readers may call Chunks.
func (t *Table) Chunks() []*Chunk { return *t.chunks.Load() }

// Chunk returns the chunk of a run and the run's number within the chunk.
func (t *Table) Chunk(r ID) (*Chunk, int) {
	return (*t.chunks.Load())[r>>(t.shift&31)], int(r & (1<<(t.shift&31) - 1))
}

// Head returns the head of a run.
func (t *Table) Head(r ID) *Head {
	c, i := t.Chunk(r)
	return &c.Heads[i]
}

// WriterState returns the writer's part of a run.
func (t *Table) WriterState(r ID) *WriterState {
	c, i := t.Chunk(r)
	return &c.states[i]
}

// Take returns an unused run, without blocks, entries and parent. Its WriterState is zero but
// for Live. Take returns None when all runs are in use and there is no memory for more:
// mayGrow refuses the bytes, or the ids run out.
func (t *Table) Take(mayGrow func(bytes int64) bool) ID {
	r := None
	if n := len(t.free); n > 0 {
		r = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		old := *t.chunks.Load()
		if int(t.Unused>>t.shift) >= len(old) {
			n := 1 << t.shift
			if t.Unused>>idBits != 0 || !mayGrow(int64(n)*(RunBytes+MaxChildBytes)) {
				return None
			}
			// Readers may hold the old list. Appending behind its end does not change it.
			list := append(old[:len(old):cap(old)], &Chunk{make([]Head, n), make([]WriterState, n), make([]atomic.Pointer[Overflow], n)})
			t.chunks.Store(&list)
		}
		r = t.Unused
		t.Unused++
	}
	t.Live++
	// Before Drop the caller has cleared the run's entries, storage and parent.
	c, i := t.Chunk(r)
	c.states[i] = WriterState{Live: true}
	c.Heads[i].NextGuess.Store(0)
	c.Heads[i].Flags.Store(0)
	return r
}

// Drop ends the use of a run that nothing names any more. The run can be taken
// again after Free.
func (t *Table) Drop(r ID) {
	t.WriterState(r).Live = false
	t.Live--
}

// Free lets a dropped run be taken again. No reader may be able to reach the run.
func (t *Table) Free(r ID) { t.free = append(t.free, r) }

// All calls visit for every run in use, the root included, until visit returns false. It is
// for the writer.
func (t *Table) All(visit func(r ID, h *Head, s *WriterState) bool) {
	for n, c := range *t.chunks.Load() {
		for i := range c.states {
			if c.states[i].Live && !visit(ID(n<<t.shift+i), &c.Heads[i], &c.states[i]) {
				return
			}
		}
	}
}
