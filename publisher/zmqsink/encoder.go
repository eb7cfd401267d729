package zmqsink

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Tokens knows the tokens of blocks; see consolidator/tokens.Table.
type Tokens interface {
	// Describe fills e with the stored event of block h alone, without hash, parent and
	// medium. It uses e's own memory as far as that reaches. It returns false when the
	// tokens are unknown. The sink's goroutine calls it.
	Describe(h kv.SequenceHash, e *engineevent.Event) bool
}

// maxBatchBytes bounds one batch, besides the bounds of kvevent. The bytes are an
// estimate of the payload.
const maxBatchBytes = 256 << 10

// blockState says what was announced of a block: the tiers in which it was
// announced, and the tiers in which it is pending. queued is its index in pendingBlocks plus
// one, 0 for none. root says that the block is the first of its sequence; it is set only
// with queued.
type blockState struct {
	announced, pending kv.TierMask
	root               bool
	queued             uint32
}

// encoder turns router events into batches in vLLM's format. It keeps what was announced,
// so that subscribers get no block without its parent and no removal of a block that was
// not announced.
type encoder struct {
	rank      kv.DPRank
	blockSize uint32
	tokens    Tokens
	count     *counters
	// send takes a batch and does not keep it.
	send func(*engineevent.Batch)

	states    map[kv.SequenceHash]blockState
	announced int // blocks that are announced in some tier
	queue     pendingBlocks
	groups    groupEncoder
	batch     engineevent.Batch
	// blocks and bytes are the size of batch.
	blocks, bytes int
	// described is scratch space: the block that describe filled in.
	described engineevent.Event
}

// apply turns one router event into events of the batch, which flush sends.
func (enc *encoder) apply(e *kvevent.RouterEvent) {
	switch e.Kind {
	case kvevent.Stored:
		enc.stored(e)
	case kvevent.Removed:
		enc.removed(e)
	case kvevent.Cleared:
		enc.clear()
	}
	enc.updateGauges()
}

// updateGauges publishes the numbers of announced and of pending blocks.
func (enc *encoder) updateGauges() {
	enc.count.said.Store(uint64(enc.announced))
	enc.count.left.Store(uint64(len(enc.queue.blocks)))
}

// clear announces that no block is left.
func (enc *encoder) clear() {
	clear(enc.states)
	enc.queue.clear()
	enc.groups.clear()
	enc.announced = 0
	enc.addEvent(kvevent.Cleared, "")
}

// stored announces the blocks of a stored event. Each block is the parent of the next. When the
// last block becomes pending, the next turn of retries begins with that block: the request that
// stored it has probably brought the tokens of its ancestors.
func (enc *encoder) stored(e *kvevent.RouterEvent) {
	if e.Group != 0 {
		for _, b := range e.Blocks {
			enc.storeInGroup(e.Tier, groupBlock{b.Hash, e.Group})
		}
		return
	}
	last, hasParent, announced := e.Parent, e.HasParent, true
	for _, b := range e.Blocks {
		announced = enc.store(e.Tier, last, hasParent, b.Hash)
		last, hasParent = b.Hash, true
	}
	if !announced {
		enc.hasten(last)
	}
}

// store announces that block h is in tier t, unless that was announced before. It returns false
// when the block becomes pending, because its parent is not announced or its tokens are unknown:
// vLLM's stored events carry tokens, and name a parent that subscribers must know. Later retries
// announce pending blocks.
func (enc *encoder) store(t kv.Tier, parent kv.SequenceHash, hasParent bool, h kv.SequenceHash) bool {
	state := enc.states[h]
	switch {
	case state.announced.Has(t): // subscribers know
	case hasParent && enc.states[parent].announced == 0:
		enc.count.orphans.Add(1)
		enc.postpone(t, parent, hasParent, h, state)
		return false
	case !enc.describe(h):
		enc.count.unknownTokens.Add(1)
		enc.postpone(t, parent, hasParent, h, state)
		return false
	default:
		state.pending = state.pending.With(t)
		enc.emitIn(state, parent, hasParent, h)
	}
	return true
}

// emitIn announces block h in every tier in which h is pending, and records that. The caller has
// made h the scratch block.
func (enc *encoder) emitIn(state blockState, parent kv.SequenceHash, hasParent bool, h kv.SequenceHash) {
	if state.announced == 0 {
		enc.announced++
	}
	for _, t := range kv.Tiers {
		if state.pending.Has(t) {
			enc.emit(t, parent, hasParent, h)
		}
	}
	enc.unlist(state.queued)
	enc.states[h] = blockState{announced: state.announced | state.pending}
	enc.announceGroups(h, parentBlock{parent, hasParent})
}

// emit appends the scratch block, which is h, to the batch: it is in tier t.
func (enc *encoder) emit(t kv.Tier, parent kv.SequenceHash, hasParent bool, h kv.SequenceHash) {
	e := enc.runFor(t, parent, hasParent)
	if enc.described.Multimodal != nil || e.Multimodal != nil {
		enc.addObjects(e)
	}
	tokens := enc.described.Tokens
	if e.Eagle && len(e.BlockHashes) > 0 {
		tokens = tokens[1:] // with Eagle, the first token is the last one of the block before
	}
	e.BlockHashes = append(e.BlockHashes, kv.EngineHash(h))
	e.Tokens = append(e.Tokens, tokens...)
	enc.grew(1, 9+5*len(tokens))
}

// describe makes h the scratch block; false when its tokens are unknown, or are not those
// of a whole block of this worker.
func (enc *encoder) describe(h kv.SequenceHash) bool {
	return enc.tokens.Describe(h, &enc.described) && enc.isWhole()
}

// isWhole reports whether the scratch block has the worker's block size and all its tokens. An
// Eagle block has one token more, because its engine hashes overlapping pairs of tokens.
func (enc *encoder) isWhole() bool {
	n := int64(enc.described.BlockSize)
	if enc.described.Eagle {
		n++
	}
	return enc.described.BlockSize == enc.blockSize && int64(len(enc.described.Tokens)) == n
}

// runFor returns the stored event to which the caller adds enc.described, a block of tier t: the
// last event of the batch if the block is the next of its sequence, else a new one. A stored
// event has one parent, adapter and salt for a run of consecutive blocks.
func (enc *encoder) runFor(t kv.Tier, parent kv.SequenceHash, hasParent bool) *engineevent.Event {
	enc.makeRoom()
	medium, b := t.Medium(), &enc.described // medium: vLLM's name of the tier
	if n := len(enc.batch.Events); n > 0 && hasParent {
		e := &enc.batch.Events[n-1]
		if e.Kind == kvevent.Stored && e.Medium == medium && e.Group == enc.groups.primary() && e.BlockHashes[len(e.BlockHashes)-1] == kv.EngineHash(parent) &&
			e.LoRAName == b.LoRAName && e.Salt == b.Salt && e.Eagle == b.Eagle {
			return e
		}
	}
	e := enc.addEvent(kvevent.Stored, medium)
	e.Parent, e.HasParent = kv.EngineHash(parent), hasParent
	e.BlockSize, e.Eagle, e.LoRAName, e.Salt = b.BlockSize, b.Eagle, b.LoRAName, b.Salt
	enc.groups.describe(e, 0)
	return e
}

// addObjects appends the multimodal objects of the scratch block to e. e already has the blocks
// before the scratch block; those without objects get an empty entry.
func (enc *encoder) addObjects(e *engineevent.Event) {
	for len(e.Multimodal) < len(e.BlockHashes) {
		e.Multimodal = append(e.Multimodal, nil)
	}
	var objects []uint64
	if enc.described.Multimodal != nil {
		objects = enc.described.Multimodal[0]
	}
	e.Multimodal = append(e.Multimodal, objects)
	enc.grew(0, 32*len(objects)) // an upper bound of their encoded size
}

// removed announces that blocks have left a tier. It only counts blocks that were not announced
// there, because subscribers do not know them.
func (enc *encoder) removed(e *kvevent.RouterEvent) {
	medium, group := e.Tier.Medium(), enc.groups.number(e.Group)
	for _, h := range e.Removed {
		if !enc.forget(e.Tier, groupBlock{h, e.Group}) {
			enc.count.ignoredRemoves.Add(1)
			continue
		}
		enc.makeRoom()
		out := enc.lastEvent(kvevent.Removed, medium) // one event for neighbours of one tier and group
		if out == nil || out.Group != group {
			out = enc.addEvent(kvevent.Removed, medium)
			out.Group = group
		}
		out.BlockHashes = append(out.BlockHashes, kv.EngineHash(h))
		enc.grew(1, 9) // one block; its hash has at most 9 bytes in msgpack
	}
}

// forget records that block b left tier t, and drops the state of a block that is in no tier. It
// reports whether b had been announced in t: then subscribers need a removed event.
func (enc *encoder) forget(t kv.Tier, b groupBlock) (wasAnnounced bool) {
	if b.group != 0 {
		return enc.groups.forget(t, b)
	}
	h := b.hash
	state := enc.states[h]
	wasAnnounced = state.announced.Has(t)
	state.announced, state.pending = state.announced.Without(t), state.pending.Without(t)
	if wasAnnounced && state.announced == 0 { // in no tier any more
		enc.announced--
		delete(enc.groups.parents, h)
	}
	if state.pending == 0 { // nothing of h is left to announce
		enc.unlist(state.queued)
		state.queued, state.root = 0, false
	}
	if state == (blockState{}) {
		delete(enc.states, h)
	} else {
		enc.states[h] = state
	}
	return wasAnnounced
}

// lastEvent returns the batch's last event if it has that kind and medium, else nil.
func (enc *encoder) lastEvent(k kvevent.Kind, medium string) *engineevent.Event {
	n := len(enc.batch.Events)
	if n == 0 || enc.batch.Events[n-1].Kind != k || enc.batch.Events[n-1].Medium != medium {
		return nil
	}
	return &enc.batch.Events[n-1]
}

// addEvent appends an empty event of kind k to the batch, and returns it. medium is vLLM's name
// of the tier. A batch with the most events allowed is sent first. The event's slices reuse the
// memory of an event of an earlier batch.
func (enc *encoder) addEvent(k kvevent.Kind, medium string) *engineevent.Event {
	if len(enc.batch.Events) == kvevent.MaxEventsPerMessage {
		enc.flush()
	}
	events := enc.batch.Events
	if len(events) < cap(events) { // the element behind the last holds an old event's slices
		events = events[:len(events)+1]
	} else {
		events = append(events, engineevent.Event{})
	}
	enc.batch.Events = events
	e := &events[len(events)-1]
	*e = engineevent.Event{
		Kind: k, Medium: medium, Group: engineevent.NoGroup,
		BlockHashes: e.BlockHashes[:0], Tokens: e.Tokens[:0],
	}
	return e
}

// makeRoom sends the batch when it has no room for another block.
func (enc *encoder) makeRoom() {
	if enc.blocks >= kvevent.MaxBlocksPerMessage || enc.bytes >= maxBatchBytes {
		enc.flush()
	}
}

// grew adds to the size of the batch. bytes is an upper bound of the encoded size: 9 for a hash
// and 5 for a token.
func (enc *encoder) grew(blocks, bytes int) {
	enc.blocks += blocks
	enc.bytes += bytes
}

// flush sends the batch unless it is empty.
func (enc *encoder) flush() {
	if len(enc.batch.Events) == 0 {
		return
	}
	enc.batch.Timestamp = float64(time.Now().UnixMicro()) / 1e6
	enc.batch.Rank, enc.batch.HasRank = enc.rank, true
	enc.send(&enc.batch)
	enc.count.events.Add(uint64(len(enc.batch.Events)))
	enc.count.blocks.Add(uint64(enc.blocks))
	enc.batch.Events = enc.batch.Events[:0]
	enc.blocks, enc.bytes = 0, 0
}
