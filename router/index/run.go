package index

import (
	"sync/atomic"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// runBlocks is how many blocks a run holds at most. A longer one would make
// holes and cuts dearer; a shorter one makes more work for each event.
const runBlocks = 128

// runID names a run. noRun is none; rootRun stands before every first block.
type runID uint32

const (
	noRun   runID = 0
	rootRun runID = 1
	// runIDBits is how many bits the tables leave for a runID.
	runIDBits = 28
)

// place is a block: position pos of a run. The root and the stand-ins for
// unknown parents have no blocks; they are places with position 0.
type place struct {
	run runID
	pos int
}

func packPlace(p place) uint64   { return uint64(p.run)<<8 | uint64(p.pos) }
func unpackPlace(v uint64) place { return place{runID(v >> 8), int(v & 0xff)} }

// head is what readers need of a run, in one cache line. The zero value is a run
// without blocks.
type head struct {
	// place is the block that the first block of the run follows.
	place atomic.Uint64
	// store is a storage.
	store atomic.Uint64
	// next is a child that once followed the run's last block: a guess that
	// readers verify.
	next  atomic.Uint32
	flags atomic.Uint32
	// entries are the owners of the run; there are more behind flagMore.
	entries [inlineEntries]atomic.Uint64
}

const inlineEntries = 5

// Flags of a run.
const (
	flagSeen uint32 = 1 << iota // a reader came by since the clock did
	flagMore                    // there are entries in overflow
)

func (h *head) storage() storage { return storage(h.store.Load()) }

// overflow holds entries that do not fit into the head. Nodes are appended and
// never change place while the run lives.
type overflow struct {
	next    atomic.Pointer[overflow]
	entries [overflowEntries]atomic.Uint64
}

// overflowEntries makes a node four cache lines.
const overflowEntries = 31

// side is what only the writer needs of a run.
type side struct {
	firstChild, nextSibling, prevSibling runID
	// marks has a bit for each block that is in the directory although the
	// directory is sparse.
	marks mask
	// held counts the entries in use.
	held int32
	// batch is the number of the run in Index.batch, if it is there.
	batch int32
	// live is set between take and release, standIn for the stand-in of an unknown
	// parent, queued while the run waits to be looked at for unused blocks, and
	// listed when all of its blocks are in the directory.
	live, standIn, queued, listed bool
}

type runChunk struct {
	heads []head
	sides []side
	over  []atomic.Pointer[overflow]
}

// runTable holds the runs. Chunks never move.
type runTable struct {
	chunks atomic.Pointer[[]*runChunk]
	shift  uint
	unused runID
	free   []runID
	live   int
}

// runBytes is what one run takes, without its blocks.
const runBytes = 64 + 44 + 8

func newRunTable(shift uint) *runTable {
	t := &runTable{shift: shift, unused: rootRun}
	t.chunks.Store(new([]*runChunk))
	return t
}

func (t *runTable) bytes() int64 { return int64(len(*t.chunks.Load())) << t.shift * runBytes }

func (t *runTable) chunk(r runID) (*runChunk, int) {
	return (*t.chunks.Load())[r>>(t.shift&31)], int(r & (1<<(t.shift&31) - 1))
}

func (t *runTable) head(r runID) *head {
	c, i := t.chunk(r)
	return &c.heads[i]
}

func (t *runTable) side(r runID) *side {
	c, i := t.chunk(r)
	return &c.sides[i]
}

// take hands out a run, all zero but for live; noRun when there is no room.
func (t *runTable) take(mayGrow func(bytes int64) bool) runID {
	r := noRun
	if n := len(t.free); n > 0 {
		r = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		old := *t.chunks.Load()
		if int(t.unused>>t.shift) >= len(old) {
			n := 1 << t.shift
			if t.unused>>runIDBits != 0 || !mayGrow(int64(n)*(runBytes+maxChildBytes)) {
				return noRun
			}
			list := append(old[:len(old):cap(old)], &runChunk{make([]head, n), make([]side, n), make([]atomic.Pointer[overflow], n)})
			t.chunks.Store(&list)
		}
		r = t.unused
		t.unused++
	}
	t.live++
	c, i := t.chunk(r)
	c.sides[i] = side{live: true}
	c.heads[i].next.Store(0)
	c.heads[i].flags.Store(0)
	return r
}

// all calls visit for every live run until it returns false.
func (t *runTable) all(visit func(r runID, h *head, s *side) bool) {
	for n, c := range *t.chunks.Load() {
		for i := range c.sides {
			if c.sides[i].live && !visit(runID(n<<t.shift+i), &c.heads[i], &c.sides[i]) {
				return
			}
		}
	}
}

// hashAt is the sequence hash of a block that is there; of the stand-in for an
// unknown parent it is that parent's. The root has none.
func (x *Index) hashAt(p place) kv.SequenceHash {
	if s := x.runs.side(p.run); s.standIn {
		return x.orphans.hashOf[p.run]
	}
	if s := x.runs.head(p.run).storage(); p.pos < s.blocks() {
		return kv.SequenceHash(x.arena.hashes(s)[p.pos])
	}
	return 0
}

// holds reports whether p is a block with hash h.
func (x *Index) holds(p place, h kv.SequenceHash) bool {
	if p.run == noRun || p.run == rootRun {
		return false
	}
	s := x.runs.head(p.run).storage()
	return p.pos < s.blocks() && x.arena.hashes(s)[p.pos] == word(h)
}
