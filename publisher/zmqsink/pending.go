package zmqsink

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Bounds of the retries of pending blocks.
const (
	// retryEvery is the least time between two turns of retries.
	retryEvery = 250 * time.Millisecond
	// maxPending bounds the pending blocks, and maxHastened those of them that come first
	// in the next turn.
	maxPending  = 2 << 20
	maxHastened = 64 << 10
	// A turn sweeps over turnSweep pending blocks, and visits turnSteps blocks at most,
	// ancestors included.
	turnSweep = 8 << 10
	turnSteps = 64 << 10
)

// pendingBlock is a block that could not be announced in some tier that has it.
type pendingBlock struct{ hash, parent kv.SequenceHash }

// pendingBlocks are the blocks to announce once their tokens and their parents are
// known. A restarted agent knows no tokens. Requests bring them, but an engine that has
// the first blocks of a prompt does not store them again.
type pendingBlocks struct {
	blocks []pendingBlock // a block is at blockState.queued-1
	cursor int            // where the sweep continues
	// hastened blocks were stored behind a pending one. A request just brought the tokens
	// of their ancestors, most of the time.
	hastened []kv.SequenceHash
	last     time.Time // end of the last turn
	// climbed and blocked are scratch space of a turn: the ancestors of one block, and the
	// blocks that cannot be announced in this turn.
	climbed []kv.SequenceHash
	blocked map[kv.SequenceHash]struct{}
}

// add keeps a block and returns its blockState.queued; 0 without room.
func (l *pendingBlocks) add(h, parent kv.SequenceHash) (at uint32) {
	if len(l.blocks) >= maxPending {
		return 0
	}
	l.blocks = append(l.blocks, pendingBlock{h, parent})
	return uint32(len(l.blocks))
}

// clear forgets all pending blocks.
func (l *pendingBlocks) clear() { l.blocks, l.hastened, l.cursor = l.blocks[:0], l.hastened[:0], 0 }

// due returns the time of the next turn; zero when no block is pending.
func (l *pendingBlocks) due() time.Time {
	if len(l.blocks) == 0 {
		return time.Time{}
	}
	return l.last.Add(retryEvery)
}

// postpone makes block h pending in tier t: a later turn of retries announces it. state is the
// block's state until now.
func (enc *encoder) postpone(t kv.Tier, parent kv.SequenceHash, hasParent bool, h kv.SequenceHash, state blockState) {
	state.pending, state.root = state.pending.With(t), !hasParent
	if state.queued == 0 {
		if state.queued = enc.queue.add(h, parent); state.queued == 0 {
			enc.count.unkept.Add(1) // no retry finds h; the next stored event of h does
		}
	}
	enc.states[h] = state
}

// unlist removes a block from the pending blocks. queued is the block's blockState.queued: its
// index plus one, or 0 if it is not pending. The last pending block takes the index. The caller
// then sets the removed block's state.
func (enc *encoder) unlist(queued uint32) {
	if queued == 0 {
		return
	}
	blocks := enc.queue.blocks
	last := blocks[len(blocks)-1]
	moved := enc.states[last.hash]
	moved.queued = queued
	enc.states[last.hash] = moved
	blocks[queued-1] = last
	enc.queue.blocks = blocks[:len(blocks)-1]
}

// hasten makes pending block h come before the sweep in the next turn of retries.
func (enc *encoder) hasten(h kv.SequenceHash) {
	if enc.states[h].queued == 0 {
		return
	}
	if len(enc.queue.hastened) >= maxHastened {
		enc.count.unwanted.Add(1) // the sweep reaches h later
		return
	}
	enc.queue.hastened = append(enc.queue.hastened, h)
}

// stateAnnounced notes that the blocks stored until now came from a snapshot. No request
// uses them for that reason, and their tokens were just asked for.
func (enc *encoder) stateAnnounced(now time.Time) {
	enc.queue.hastened, enc.queue.last = enc.queue.hastened[:0], now
}

// retry announces pending blocks whose tokens are known now. It begins with the hastened ones,
// behind which a request has just stored blocks, and goes on with those that the sweep reaches. A
// turn visits at most turnSteps blocks, so that new events need not wait long.
func (enc *encoder) retry(now time.Time) {
	enc.queue.last = now
	budget := turnSteps
	done := 0
	for ; done < len(enc.queue.hastened) && budget > 0; done++ {
		enc.announceChain(enc.queue.hastened[done], &budget)
	}
	enc.queue.hastened = append(enc.queue.hastened[:0], enc.queue.hastened[done:]...)
	enc.sweep(&budget)
	clear(enc.queue.blocked)
	enc.updateGauges()
	enc.flush()
}

// sweep tries to announce the next turnSweep pending blocks from the cursor on, each after its
// pending ancestors. It stops when the budget of visits is used up.
func (enc *encoder) sweep(budget *int) {
	l := &enc.queue
	for left := min(turnSweep, len(l.blocks)); left > 0 && *budget > 0 && len(l.blocks) > 0; left-- {
		if l.cursor >= len(l.blocks) {
			l.cursor = 0
		}
		h := l.blocks[l.cursor].hash
		enc.announceChain(h, budget)
		if l.cursor < len(l.blocks) && l.blocks[l.cursor].hash == h {
			l.cursor++ // an announced block has left its index to another one
		}
	}
}

// announceChain announces the pending ancestors of pending block h, topmost first, and then h:
// subscribers know no block without its parent. It stops at the first block whose tokens are
// unknown. A turn of retries has a budget of blocks to visit; announceChain lowers the budget by
// its own visits. It marks the blocks that cannot be announced, so that the turn visits each of
// them once.
func (enc *encoder) announceChain(h kv.SequenceHash, budget *int) {
	l := &enc.queue
	l.climbed = l.climbed[:0]
	// Climb to the topmost pending ancestor. It is the first block of the sequence, or its parent
	// is announced.
	for top := false; !top; {
		state := enc.states[h]
		_, blocked := l.blocked[h]
		pending := state.queued != 0
		if !pending || blocked || *budget == 0 {
			enc.markBlocked(l.climbed)
			return
		}
		*budget--
		l.climbed = append(l.climbed, h)
		parent := l.blocks[state.queued-1].parent // queued is the index plus one
		top = state.root || enc.states[parent].announced != 0
		h = parent
	}
	for n := len(l.climbed); n > 0; n-- { // the topmost ancestor is the last one climbed to
		if !enc.announcePending(l.climbed[n-1]) {
			enc.markBlocked(l.climbed[:n])
			return
		}
	}
}

// markBlocked notes that the blocks of path cannot be announced in this turn.
func (enc *encoder) markBlocked(path []kv.SequenceHash) {
	if enc.queue.blocked == nil {
		enc.queue.blocked = make(map[kv.SequenceHash]struct{})
	}
	for _, h := range path {
		enc.queue.blocked[h] = struct{}{}
	}
}

// announcePending announces a pending block in every tier that has it; false when its
// tokens are unknown. Its parent has been announced.
func (enc *encoder) announcePending(h kv.SequenceHash) bool {
	enc.count.retries.Add(1)
	if !enc.describe(h) {
		return false
	}
	enc.count.recovered.Add(1)
	state := enc.states[h]
	enc.emitIn(state, enc.queue.blocks[state.queued-1].parent, !state.root, h)
	return true
}
