package loggen

import (
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Sink receives the changes of an engine. It must not keep the slices.
type Sink interface {
	// Stored receives blocks, each the child of the one before it. The first one is the
	// child of parent; with 0 it begins a sequence.
	Stored(parent kv.SequenceHash, blocks []kvevent.StoredBlock) error
	// Removed receives blocks that the engine dropped.
	Removed(hashes []kv.SequenceHash) error
}

// Engine is a prefix cache. Blocks of the present request stay; the least recently used
// others make room. It takes about 60 bytes for each block of its pool.
type Engine struct {
	chunk int
	order Order
	rng   *rand.Rand
	// slots are the pool from index 1. slots[0] is both ends of the list of unused
	// blocks, the next victim first.
	slots  []slot
	free   []int32
	blocks map[kv.SequenceHash]int32

	// Reused memory of Serve.
	prompt  []int32
	store   []kvevent.StoredBlock
	removed []kv.SequenceHash
}

// slot is room for one block. An unused block's slot is in the list; free slots and
// slots in use are not.
type slot struct {
	kvevent.StoredBlock
	parent       kv.SequenceHash
	before, next int32
}

// NewEngine returns an engine with the pool, chunk and order of o, which must be valid.
// number distinguishes engines of one seed.
func NewEngine(o Options, number uint64) *Engine {
	o = o.WithDefaults()
	e := &Engine{
		chunk: o.Chunk, order: o.Order, rng: rand.New(rand.NewPCG(o.Seed, number+2)),
		slots: make([]slot, o.Pool+1), free: make([]int32, 0, o.Pool), blocks: make(map[kv.SequenceHash]int32, o.Pool),
	}
	e.Reset()
	return e
}

// Held returns the number of held blocks.
func (e *Engine) Held() int { return len(e.blocks) }

// Prefix returns the number of leading blocks of a prompt that the engine holds. seq are the
// blocks' hashes.
func (e *Engine) Prefix(seq []kv.SequenceHash) int {
	for i, h := range seq {
		if e.blocks[h] == 0 {
			return i
		}
	}
	return len(seq)
}

// Serve stores the missing blocks of a prompt, evicts others to make room, and sends both changes
// to to: stored events of at most a chunk of blocks, each after the removals that it needs.
// locals and seq are the hashes of the prompt's blocks. Of a prompt longer than the pool the
// front is kept. After an error only Reset may follow.
func (e *Engine) Serve(locals []kv.LocalHash, seq []kv.SequenceHash, to Sink) error {
	n := min(len(seq), len(e.slots)-1)
	e.prompt = e.prompt[:0]
	for _, h := range seq[:n] {
		at := e.blocks[h]
		if at != 0 {
			e.unlink(at)
		}
		e.prompt = append(e.prompt, at)
	}
	for at := 0; at < n; at++ {
		if e.prompt[at] != 0 {
			continue
		}
		end := at + 1
		for end < n && end-at < e.chunk && e.prompt[end] == 0 {
			end++
		}
		if err := e.storeRun(locals, seq, at, end, to); err != nil {
			return err
		}
		at = end - 1
	}
	e.release()
	return nil
}

// storeRun stores the blocks at … end-1 of a prompt, and evicts as many old blocks as that needs.
// It sends both changes to to, the removal first.
func (e *Engine) storeRun(locals []kv.LocalHash, seq []kv.SequenceHash, at, end int, to Sink) error {
	e.removed = e.removed[:0]
	for len(e.free) < end-at {
		i := e.slots[0].next
		e.unlink(i)
		delete(e.blocks, e.slots[i].Hash)
		e.removed, e.free = append(e.removed, e.slots[i].Hash), append(e.free, i)
	}
	if e.order == Shuffled {
		e.rng.Shuffle(len(e.removed), func(i, j int) { e.removed[i], e.removed[j] = e.removed[j], e.removed[i] })
	}
	if len(e.removed) > 0 {
		if err := to.Removed(e.removed); err != nil {
			return err
		}
	}
	parent := kv.SequenceHash(0)
	if at > 0 {
		parent = seq[at-1]
	}
	e.store = e.store[:0]
	for i, before := at, parent; i < end; i++ {
		free := e.free[len(e.free)-1]
		e.free = e.free[:len(e.free)-1]
		s := &e.slots[free]
		s.StoredBlock, s.parent = kvevent.StoredBlock{Hash: seq[i], Local: locals[i]}, before
		e.blocks[s.Hash], e.prompt[i], before = free, free, s.Hash
		e.store = append(e.store, s.StoredBlock)
	}
	return to.Stored(parent, e.store)
}

// release makes the blocks of the last prompt evictable: its end first, or in random order for
// Scattered.
func (e *Engine) release() {
	if e.order == Scattered {
		e.rng.Shuffle(len(e.prompt), func(i, j int) { e.prompt[i], e.prompt[j] = e.prompt[j], e.prompt[i] })
	}
	for i := len(e.prompt) - 1; i >= 0; i-- {
		at, last := e.prompt[i], e.slots[0].before
		e.slots[at].before, e.slots[at].next = last, 0
		e.slots[last].next, e.slots[0].before = at, at
	}
}

// unlink removes a slot from the list of unused blocks.
func (e *Engine) unlink(at int32) {
	s := &e.slots[at]
	e.slots[s.before].next, e.slots[s.next].before = s.next, s.before
}

// Reset drops every block and sends no event, as the death of an engine does.
func (e *Engine) Reset() {
	clear(e.blocks)
	e.slots[0].before, e.slots[0].next = 0, 0
	e.free = e.free[:0]
	for i := len(e.slots) - 1; i > 0; i-- {
		e.free = append(e.free, int32(i))
	}
}

// Dump sends all held blocks to to, as stored events of at most a chunk each. A block may come
// before its parent.
func (e *Engine) Dump(to Sink) error {
	child := make([]int32, len(e.slots)) // of each block, one of several
	for _, at := range e.blocks {
		if parent := e.blocks[e.slots[at].parent]; parent != 0 {
			child[parent] = at
		}
	}
	for _, at := range e.blocks {
		parent := e.slots[at].parent
		if before := e.blocks[parent]; before != 0 && child[before] == at {
			continue // it comes with its parent
		}
		e.store = e.store[:0]
		for ; at != 0; at = child[at] {
			s := &e.slots[at]
			if len(e.store) == e.chunk {
				if err := to.Stored(parent, e.store); err != nil {
					return err
				}
				parent, e.store = s.parent, e.store[:0]
			}
			e.store = append(e.store, s.StoredBlock)
		}
		if err := to.Stored(parent, e.store); err != nil {
			return err
		}
	}
	return nil
}
