package killloop

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/lab/cluster"
)

const (
	// docBlocks is the number of blocks of a document, blockTokens the number of tokens
	// of a block, blockBytes its size.
	docBlocks   = 8
	blockTokens = 16
	blockBytes  = 16 << 10
	// spaces is the number of namespaces.
	spaces = 2
)

// namespaceOf returns one of the namespaces of a run.
func namespaceOf(space int) kv.Namespace {
	return kv.Namespace{
		Model: fmt.Sprintf("kill-loop-%d", space), Weights: "none", DType: "bfloat16",
		Layers: 2, OuterDim: 2, BlockSize: blockTokens, InnerDim: blockBytes / (2 * 2 * 2 * blockTokens), DTypeBytes: 2,
		Layout: "fully_contiguous", TP: 1, PP: 1, DCP: 1, KVFormat: "kill-loop-1",
	}
}

// docID names a document, a sequence of tokens. It has the worker that stores the
// document (0 for all engines of a namespace), the life of that worker, and a number.
// One id in two namespaces is two documents with equal tokens.
type docID uint64

const (
	docLifeShift   = 24
	docWorkerShift = 48
)

func makeDoc(worker uint64, life, number uint32) docID {
	return docID(worker<<docWorkerShift | uint64(life)<<docLifeShift | uint64(number)&(1<<docLifeShift-1))
}

// tokens returns the document's tokens. They begin with the id, so that no two
// documents share a block.
func (d docID) tokens() []uint32 {
	t := make([]uint32, docBlocks*blockTokens)
	for i := range t {
		t[i] = uint32(mix(uint64(d) + uint64(i)))
	}
	t[0], t[1] = uint32(d>>32), uint32(d)
	return t
}

// keys returns the keys of the document's blocks in a namespace.
func (d docID) keys(ns kv.NamespaceID) [docBlocks]kv.BlockKey {
	var keys [docBlocks]kv.BlockKey
	k, tokens := kv.NewKeyer(), d.tokens()
	parent := k.Root(ns, "", "")
	for i := range keys {
		parent = k.Next(parent, tokens[i*blockTokens:(i+1)*blockTokens], nil)
		keys[i] = parent
	}
	return keys
}

// pattern is an endless pseudo-random sequence of bytes: the content of a block, or the
// stamp of a writer.
type pattern struct{ lo, hi uint64 }

// contentOf returns the content of the block with this key.
func contentOf(key kv.BlockKey) pattern {
	return pattern{binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])}
}

// fill writes the bytes of the pattern from offset on into b. offset and the length of
// b are multiples of 8.
func (p pattern) fill(b []byte, offset int) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], p.word(offset+i))
	}
}

// wrong returns the number of bytes of b that differ from the pattern. offset is the place of b
// in the block.
func (p pattern) wrong(b []byte, offset int) int {
	n := 0
	for i := 0; i < len(b); i += 8 {
		if d := binary.LittleEndian.Uint64(b[i:]) ^ p.word(offset+i); d != 0 {
			n += differing(d)
		}
	}
	return n
}

func (p pattern) word(offset int) uint64 { return mix(p.lo+uint64(offset)) ^ p.hi }

// differing returns the number of bytes of d that are not zero.
func differing(d uint64) int {
	d |= d >> 4
	d |= d >> 2
	d |= d >> 1
	return bits.OnesCount64(d & 0x0101010101010101)
}

// mix returns a bijection of 64 bits that leaves no pattern (the finalizer of
// SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

const (
	// A copy goes in pieces of pieceBytes, with a pause after each.
	pieceBytes = 2 << 10
	piecePause = 400 * time.Microsecond
	// commonPeriod is how long all engines of a namespace store the same document.
	commonPeriod = 300 * time.Millisecond
)

// store is a document's granted slots, from GRANT to COMMIT or ABORT.
type store struct {
	doc      docID
	mappedBy *session // the copies use its mappings

	// Guarded by engine.mu.

	heldBy     *session // has the grants now: mappedBy, or a session that resumed it
	id         proto.RequestID
	copies     []*slotCopy // into slots that are still granted
	answerOpen bool        // the COMMIT was sent and its answer is not known
}

// slotCopy is the copy of one block into its slot. The first written bytes of the slot
// are the block's content; after them the slot has the stamp, as far as the copy got.
type slotCopy struct {
	block            uint32
	slot             proto.Slot
	mem              []byte
	stamp, content   pattern
	stamped, written int
	dropped          atomic.Bool // the slot is not granted any more
}

// newSlotCopy returns a copy that has not begun. stamp belongs to this process alone,
// so that no other writes the same bytes.
func newSlotCopy(block uint32, slot proto.Slot, mem []byte, stamp uint64, key kv.BlockKey) *slotCopy {
	return &slotCopy{
		block: block, slot: slot, mem: mem, content: contentOf(key),
		stamp: pattern{stamp + slot.Generation, mix(uint64(slot.Extent)<<32 | uint64(slot.Index))},
	}
}

// storeAll stores one document after the other until ctx ends. Half of them are documents that
// all engines store. It is one of the engine's storers.
func (e *engine) storeAll(ctx context.Context, rng *rand.Rand) {
	for {
		s := e.session(ctx)
		if s == nil {
			return
		}
		doc := makeDoc(e.Worker, e.Life, e.stored.Add(1))
		if rng.IntN(2) == 0 {
			doc = makeDoc(0, 0, uint32(cluster.Now()/int64(commonPeriod)))
		}
		e.storeDoc(ctx, s, doc, rng)
		if cluster.Wait(ctx, piecePause) != nil {
			return
		}
	}
}

// storeDoc stores one document: it asks for slots, copies the blocks and commits. Now and then it
// aborts in the middle.
func (e *engine) storeDoc(ctx context.Context, s *session, doc docID, rng *rand.Rand) {
	id := e.request()
	if s.sched.Open(id, "", "", "", doc.tokens()) != nil {
		return
	}
	answer, cancel := context.WithTimeout(ctx, answerTime)
	a, err := s.sched.Store(answer, id, 0, docBlocks)
	cancel()
	if err != nil {
		e.refusal(err)
		return
	}
	if st := e.beginStore(s, doc, id, a.Grants, cluster.Now()); st != nil {
		whole := e.copyAll(ctx, st, rng)
		e.settle(ctx, st, !whole)
	}
	_ = s.sched.CloseRequest(id) // the request ended with its connection
}

// beginStore returns a store: the record that the engine fills the granted slots of a document,
// until settle commits or aborts them. at is when the grant came. It returns nil, and nothing may
// be written, without slots and when the agent is dead: the next agent will not hear of these
// grants. The ledger gets a note of the grant.
func (e *engine) beginStore(s *session, doc docID, id proto.RequestID, grants []proto.GrantedSlot, at int64) *store {
	st := &store{doc: doc, mappedBy: s, heldBy: s, id: id}
	keys := doc.keys(e.space)
	n := note{Kind: noteGrant, Time: at, Doc: doc}
	for _, g := range grants {
		mem, err := s.sched.SlotBytes(g.Slot)
		if err != nil || int(g.Block) >= docBlocks {
			e.notes.fault(faultRefused, 1, "grant %+v: %v", g, err)
			return nil
		}
		st.copies = append(st.copies, newSlotCopy(g.Block, g.Slot, mem, e.stamp, keys[g.Block]))
		n.Blocks, n.Slots = append(n.Blocks, g.Block), append(n.Slots, g.Slot)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.agentDead || len(grants) == 0 {
		return nil
	}
	s.stores[st] = struct{}{} // RESUME names them
	s.copies.Add(1)           // settle calls Done
	e.notes.put(n)
	return st
}

// copyAll copies every block of a store into its slot, by itself or through the mover, the engine's
// worker process. It returns false when not all bytes are there: when it gave up on purpose, which
// it does now and then, when the mover did not copy, and when ctx ended.
func (e *engine) copyAll(ctx context.Context, st *store, rng *rand.Rand) (whole bool) {
	e.mu.Lock()
	copies := slices.Clone(st.copies) // a RESUME may drop some meanwhile
	e.mu.Unlock()
	if rng.IntN(2) == 0 && e.mover.mu.TryLock() {
		defer e.mover.mu.Unlock()
		if !e.mover.copy(st.mappedBy.welcome.Session, st.doc, copies) {
			return false
		}
		for _, c := range copies { // the mover has written all bytes, which settle compares
			c.stamped, c.written = len(c.mem), len(c.mem)
		}
		return true
	}
	pieces := -1 // all
	if rng.IntN(10) == 0 {
		pieces = rng.IntN(2 * docBlocks * blockBytes / pieceBytes)
	}
	return e.notes.copyAll(ctx, copies, pieces)
}

// copyAll copies blocks into their slots one after the other, in small pieces so that kills hit
// copies, and notes the begin and the end of each for the ledger. Bytes of another process in a
// slot (foreign) are a fault. It stops after that many pieces, unless pieces is negative, and
// when ctx ends. It returns true when every block is whole.
func (w *noteWriter) copyAll(ctx context.Context, copies []*slotCopy, pieces int) (whole bool) {
	for _, c := range copies {
		if c.dropped.Load() { // RESUMED did not keep the slot: it is not ours any more
			continue
		}
		w.put(note{Kind: noteBegin, Slots: []proto.Slot{c.slot}})
		for c.written < len(c.mem) && pieces != 0 && ctx.Err() == nil {
			if foreign := c.step(); foreign > 0 && !c.dropped.Load() {
				w.fault(faultForeign, foreign, "in the middle of the copy to %+v", c.slot)
			}
			pieces--
			_ = cluster.Wait(ctx, piecePause)
		}
		w.put(note{Kind: noteEnd, Slots: []proto.Slot{c.slot}})
		if c.written < len(c.mem) && !c.dropped.Load() {
			return false
		}
	}
	return true
}

// step copies the next piece: first the stamp, which is unique to this process, over the whole
// slot, then the content over the stamp. It returns the number of stamped bytes that another
// writer has changed, which proves that the slot was granted twice.
func (c *slotCopy) step() (foreign int) {
	if c.stamped < len(c.mem) {
		c.stamp.fill(c.mem[c.stamped:c.stamped+pieceBytes], c.stamped)
		c.stamped += pieceBytes
		return 0
	}
	piece := c.mem[c.written : c.written+pieceBytes]
	foreign = c.stamp.wrong(piece, c.written)
	c.content.fill(piece, c.written)
	c.written += pieceBytes
	return foreign
}

// foreign returns the number of bytes of the slot that the copy did not write.
func (c *slotCopy) foreign() int {
	return c.content.wrong(c.mem[:c.written], 0) + c.stamp.wrong(c.mem[c.written:c.stamped], c.written)
}

// settle ends a store: it checks every byte of its slots that are still granted, and commits them,
// or with abort gives them back unfilled. When the agent dies before it has answered, settle
// waits until the next session has resumed, and goes on with the slots that it kept.
func (e *engine) settle(ctx context.Context, st *store, abort bool) {
	defer st.mappedBy.copies.Done()
	for {
		e.mu.Lock()
		owner, id, copies, lost := st.heldBy, st.id, slices.Clone(st.copies), st.heldBy.agentDead
		e.mu.Unlock()
		if len(copies) == 0 || !lost && e.giveBack(st, owner, id, copies, abort) { // none left, or answered
			break
		}
		select {
		case <-owner.takenOver:
			continue
		case <-ctx.Done():
			return // the process ends and its grants with it
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(st.heldBy.stores, st)
}

// giveBack commits the copies' slots at the agent of session owner, or with abort gives them back
// unfilled. Before that it checks every byte, and notes that the engine does not use the slots any
// more. It returns false when the agent is dead, or another session has the slots.
func (e *engine) giveBack(st *store, owner *session, id proto.RequestID, copies []*slotCopy, abort bool) bool {
	slots := make([]proto.Slot, len(copies))
	for i, c := range copies {
		slots[i] = c.slot
		if foreign := c.foreign(); !c.dropped.Load() { // bytes that are not this process's
			e.notes.fault(faultForeign, foreign, "at the end of the copy to %+v", c.slot)
		}
	}
	e.notes.put(note{Kind: noteSettle, Slots: slots})
	if !e.offer(st, owner) {
		return false
	}
	if abort {
		return owner.sched.Abort(id, slots) == nil
	}
	// Not the engine's context: a commit that began is finished.
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	return !e.disconnected(owner.sched.Commit(ctx, id, slots))
}

// offer records that COMMIT or ABORT is about to be sent to owner, whose answer may
// never come. It reports false when the slots belong to the next session already.
func (e *engine) offer(st *store, owner *session) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	st.answerOpen = st.heldBy == owner
	return st.answerOpen
}

// disconnected reports whether err means that the agent is dead. A refusal is a fault:
// every frame of this engine is correct.
func (e *engine) disconnected(err error) bool {
	return err != nil && !e.refusal(err)
}

// refusal reports whether err says that the agent refused or did not answer in time, and notes
// that as a fault.
func (e *engine) refusal(err error) bool {
	var refused *proto.RefusedError
	if !errors.As(err, &refused) && !errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	e.notes.fault(faultRefused, 1, "%v", err)
	return true
}
