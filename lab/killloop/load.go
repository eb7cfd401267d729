package killloop

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// lookupWait bounds the wait of a lookup for the agent's disk.
const lookupWait = 50 * time.Millisecond

// load is the pinned slots of a document that an engine is reading.
type load struct {
	mappedBy *session // the copies use its mappings

	// Guarded by engine.mu.

	heldBy  *session // has the pins now: mappedBy, or a session that resumed it
	slots   []proto.Slot
	resumed bool                // RESUMED gave the pins back
	dropped map[proto.Slot]bool // pins that RESUMED did not give back
}

// loadAll loads one document after the other until ctx ends. It is one of the engine's loaders.
func (e *engine) loadAll(ctx context.Context, rng *rand.Rand) {
	for {
		s := e.session(ctx)
		if s == nil {
			return
		}
		e.loadDoc(ctx, s, e.choose(rng))
		if cluster.Wait(ctx, piecePause) != nil {
			return
		}
	}
}

// choose returns a random document that is probably stored: one of this life of the engine, of an
// earlier life, or one that all engines store.
func (e *engine) choose(rng *rand.Rand) docID {
	switch rng.IntN(3) {
	case 0:
		ago := time.Duration(rng.Int64N(int64(2 * time.Second)))
		return makeDoc(0, 0, uint32((cluster.Now()-int64(ago))/int64(commonPeriod)))
	case 1:
		if e.Life > 0 {
			return makeDoc(e.Worker, rng.Uint32N(e.Life), 1+rng.Uint32N(50))
		}
	}
	return makeDoc(e.Worker, e.Life, 1+rng.Uint32N(max(e.stored.Load(), 1)))
}

// loadDoc looks up a document and loads the leading blocks that the agent has.
func (e *engine) loadDoc(ctx context.Context, s *session, doc docID) {
	id := e.request()
	if s.sched.Open(id, "", "", "", doc.tokens()) != nil {
		return
	}
	answer, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	hit, err := s.sched.Lookup(answer, id, 0, docBlocks, lookupWait)
	if err == nil && hit.Ready > 0 {
		err = e.claim(ctx, answer, s, id, doc, hit.Ready)
	}
	e.refusal(err)
	_ = s.sched.CloseRequest(id) // the request ended with its connection
}

// claim loads the n pinned blocks of a document: it sends CLAIM, for which the agent sends the
// engine's worker a LOAD, and then copies the slots as a worker does. It loads nothing when the
// agent dies before the LOAD has come. ctx is the engine's, answer bounds the wait for the agent.
func (e *engine) claim(ctx, answer context.Context, s *session, id proto.RequestID, doc docID, n int) error {
	job, came := s.expect()
	if _, err := s.sched.Claim(answer, id, job, 0, devices(n)); err != nil {
		return err
	}
	var j proto.LoadJob
	select {
	case j = <-came:
	case <-s.sched.Done():
		return nil
	case <-answer.Done():
		if ctx.Err() == nil {
			e.notes.fault(faultRefused, 1, "LOAD of job %d does not come", job)
		}
		return nil
	}
	if l := e.beginLoad(s, j.Slots); l != nil { // nil: the agent is dead, and with it the pins
		keys := doc.keys(e.space)
		loaded := 0
		for i, slot := range j.Slots {
			if e.loadSlot(ctx, l, slot, keys[i]) {
				loaded++
			}
		}
		e.endLoad(l)
		e.notes.put(note{Kind: noteLoaded, Count: uint64(loaded)})
	}
	return nil
}

// beginLoad records that the engine reads pinned slots, until endLoad. It returns nil, and
// nothing may be read, when the agent is dead: the next agent will not hear of these pins.
func (e *engine) beginLoad(s *session, slots []proto.Slot) *load {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.agentDead {
		return nil
	}
	l := &load{mappedBy: s, heldBy: s, slots: slots, dropped: map[proto.Slot]bool{}}
	s.loads[l] = struct{}{}
	s.copies.Add(1)
	return l
}

// endLoad releases pins that RESUMED gave back. Other pins end with their request or
// ended with the agent.
func (e *engine) endLoad(l *load) {
	defer l.mappedBy.copies.Done()
	owner, unused := e.dropPins(l)
	owner.releaseResumed(unused)
}

// dropPins ends load l, the reading of pinned slots. It returns the session that has the load's pins
// now, and the numbers, for RELEASE, of pins from a RESUME that no other load uses any more. Other
// pins end with their request.
func (e *engine) dropPins(l *load) (owner *session, unused []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(l.heldBy.loads, l)
	for _, slot := range l.slots {
		p := l.heldBy.pins[slot]
		if !l.resumed || l.dropped[slot] || p == nil {
			continue
		}
		if p.users--; p.users == 0 {
			delete(l.heldBy.pins, slot)
			unused = append(unused, p.index)
		}
	}
	return l.heldBy, unused
}

// releaseResumed releases pins. A dead agent needs no release, and the next agent does
// not hear of these pins.
func (s *session) releaseResumed(pins []int) {
	for _, i := range pins {
		_ = s.sched.Release(proto.RequestID{ID: proto.ResumedRequest}, i, 1)
	}
}

// errMoved says that a slot changed its generation.
var errMoved = errors.New("generation has changed")

// loadSlot copies one block out of a pinned slot and compares its bytes with those that key
// demands. It returns true when the whole block is right. A slot that changed although it was
// pinned is a fault.
func (e *engine) loadSlot(ctx context.Context, l *load, slot proto.Slot, key kv.BlockKey) bool {
	block, err := readSlot(ctx, &l.mappedBy.link, slot, piecePause)
	switch {
	case errors.Is(err, errMoved):
		if e.stillPinned(ctx, l, slot) {
			e.notes.fault(faultPin, 1, "%+v is pinned and has another generation", slot)
		}
		return false
	case err != nil:
		return false
	}
	wrong := contentOf(key).wrong(block, 0)
	e.notes.fault(faultWrong, wrong, "%+v", slot)
	return wrong == 0
}

// readSlot returns a copy of a slot. It copies in pieces, with the pause gap after each, so that
// kills hit copies. The error is errMoved when the slot's generation changed.
func readSlot(ctx context.Context, l *link, slot proto.Slot, gap time.Duration) ([]byte, error) {
	mem, err := mappedSlot(ctx, l, slot)
	if err != nil {
		return nil, err
	}
	if err := checkGeneration(l, slot); err != nil {
		return nil, err
	}
	block := make([]byte, len(mem))
	for off := 0; off < len(mem); off += pieceBytes {
		copy(block[off:off+pieceBytes], mem[off:])
		if gap > 0 && cluster.Wait(ctx, gap) != nil {
			return nil, ctx.Err()
		}
	}
	return block, checkGeneration(l, slot)
}

// mappedSlot returns the memory of a slot as the worker maps it. It waits a while for the slot's
// extent, because the scheduler may hear of a slot before the worker's connection has brought the
// extent.
func mappedSlot(ctx context.Context, l *link, slot proto.Slot) ([]byte, error) {
	deadline := time.Now().Add(answerTime)
	for {
		mem, err := l.worker.SlotBytes(slot)
		if err == nil || time.Now().After(deadline) || cluster.Wait(ctx, time.Millisecond) != nil {
			return mem, err
		}
		select {
		case <-l.worker.Done():
			return nil, proto.ErrDisconnected
		default:
		}
	}
}

func checkGeneration(l *link, slot proto.Slot) error {
	g, err := l.worker.Generation(slot)
	if err == nil && g != slot.Generation {
		err = errMoved
	}
	return err
}

// stillPinned reports whether the agent should still keep the load's pin of a slot, so that a
// changed slot is a fault. After the death of an agent it waits for RESUMED of the next agent,
// which decides. After an unanswered RESUME nobody can tell, and it returns false.
func (e *engine) stillPinned(ctx context.Context, l *load, slot proto.Slot) bool {
	for {
		e.mu.Lock()
		owner, agentDead, unanswered, dropped := l.heldBy, l.heldBy.agentDead, l.heldBy.resumeUnanswered, l.dropped[slot]
		e.mu.Unlock()
		if dropped || unanswered {
			return false
		}
		if !agentDead {
			return true
		}
		select {
		case <-owner.takenOver:
		case <-ctx.Done():
			return false
		}
	}
}
