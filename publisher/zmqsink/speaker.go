package zmqsink

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Tokens knows the tokens of blocks; see consolidator/tokens.Table.
type Tokens interface {
	// Describe makes e the stored event of block h alone, but for its hash, parent and
	// medium, in e's own memory as far as that reaches. False: the tokens are not
	// known. It is called from the sink's goroutine.
	Describe(h kv.SequenceHash, e *engineevent.Event) bool
}

// Bounds of one batch, besides those of kvevent. The bytes are an estimate of the
// payload.
const maxBatchBytes = 256 << 10

// blockState is in which tiers a block was said, and in which it is and had to be left
// out. at is its place among the leftBlocks plus one, 0 for none; root says that it is
// the first of its sequence, which counts while it has a place.
type blockState struct {
	said, left kv.TierMask
	root       bool
	at         uint32
}

// speaker says router events in the engines' words. It keeps what was said, so that
// what subscribers were told stays consistent in itself: no block without the block
// before it, no removal of what was not stored.
type speaker struct {
	rank      kv.DPRank
	blockSize uint32
	tokens    Tokens
	count     *counters
	// send takes a batch, which is lent.
	send func(*engineevent.Batch)

	told  map[kv.SequenceHash]blockState
	known int // blocks that were said in some tier
	left  leftBlocks
	batch engineevent.Batch
	// blocks and bytes are what is in the batch.
	blocks, bytes int
	// block is scratch space.
	block engineevent.Event
}

// apply says one event.
func (s *speaker) apply(e *kvevent.RouterEvent) {
	switch e.Kind {
	case kvevent.Stored:
		s.stored(e)
	case kvevent.Removed:
		s.removed(e)
	case kvevent.Cleared:
		s.clear()
	}
	s.countHeld()
}

func (s *speaker) countHeld() {
	s.count.said.Store(uint64(s.known))
	s.count.left.Store(uint64(len(s.left.blocks)))
}

// clear says that nothing is left.
func (s *speaker) clear() {
	clear(s.told)
	s.left.clear()
	s.known = 0
	s.addEvent(kvevent.Cleared, "")
}

func (s *speaker) stored(e *kvevent.RouterEvent) {
	parent, hasParent, ok := e.Parent, e.HasParent, true
	for _, b := range e.Blocks {
		ok = s.store(e.Tier, parent, hasParent, b.Hash)
		parent, hasParent = b.Hash, true
	}
	if !ok {
		s.want(parent)
	}
}

// store says one block, unless it cannot be said.
func (s *speaker) store(t kv.Tier, parent kv.SequenceHash, hasParent bool, h kv.SequenceHash) bool {
	in := s.told[h]
	switch {
	case in.said.Has(t):
	case hasParent && s.told[parent].said == 0:
		s.count.orphans.Add(1)
		s.leave(t, parent, hasParent, h, in)
		return false
	case !s.describe(h):
		s.count.unknownTokens.Add(1)
		s.leave(t, parent, hasParent, h, in)
		return false
	default:
		in.left = in.left.With(t)
		s.sayIn(in, parent, hasParent, h)
	}
	return true
}

// sayIn says the scratch block, which is h, in every tier in which it is left.
func (s *speaker) sayIn(in blockState, parent kv.SequenceHash, hasParent bool, h kv.SequenceHash) {
	if in.said == 0 {
		s.known++
	}
	for _, t := range kv.Tiers {
		if in.left.Has(t) {
			s.say(t, parent, hasParent, h)
		}
	}
	s.drop(in.at)
	s.told[h] = blockState{said: in.said | in.left}
}

// say says the scratch block, which is h, in tier t.
func (s *speaker) say(t kv.Tier, parent kv.SequenceHash, hasParent bool, h kv.SequenceHash) {
	e := s.runFor(t, parent, hasParent)
	if s.block.Multimodal != nil || e.Multimodal != nil {
		s.addObjects(e)
	}
	tokens := s.block.Tokens
	if e.Eagle && len(e.BlockHashes) > 0 {
		tokens = tokens[1:] // the last token of the block before
	}
	e.BlockHashes = append(e.BlockHashes, kv.EngineHash(h))
	e.Tokens = append(e.Tokens, tokens...)
	s.grew(1, 9+5*len(tokens))
}

// describe makes the scratch block that of h, which has to be a block of this worker.
func (s *speaker) describe(h kv.SequenceHash) bool {
	return s.tokens.Describe(h, &s.block) && s.isWhole()
}

func (s *speaker) isWhole() bool {
	n := int64(s.block.BlockSize)
	if s.block.Eagle {
		n++
	}
	return s.block.BlockSize == s.blockSize && int64(len(s.block.Tokens)) == n
}

// runFor is the stored event that the scratch block goes to: the last one of the
// batch if the block continues it, else a new one.
func (s *speaker) runFor(t kv.Tier, parent kv.SequenceHash, hasParent bool) *engineevent.Event {
	s.makeRoom()
	medium, b := mediumOf(t), &s.block
	if n := len(s.batch.Events); n > 0 && hasParent {
		e := &s.batch.Events[n-1]
		if e.Kind == kvevent.Stored && e.Medium == medium && e.BlockHashes[len(e.BlockHashes)-1] == kv.EngineHash(parent) &&
			e.LoRAName == b.LoRAName && e.Salt == b.Salt && e.Eagle == b.Eagle {
			return e
		}
	}
	e := s.addEvent(kvevent.Stored, medium)
	e.Parent, e.HasParent = kv.EngineHash(parent), hasParent
	e.BlockSize, e.Eagle, e.LoRAName, e.Salt = b.BlockSize, b.Eagle, b.LoRAName, b.Salt
	return e
}

// addObjects appends the scratch block's multimodal objects to e, which has the
// blocks before it.
func (s *speaker) addObjects(e *engineevent.Event) {
	for len(e.Multimodal) < len(e.BlockHashes) {
		e.Multimodal = append(e.Multimodal, nil)
	}
	var objects []uint64
	if s.block.Multimodal != nil {
		objects = s.block.Multimodal[0]
	}
	e.Multimodal = append(e.Multimodal, objects)
	s.grew(0, 32*len(objects))
}

func (s *speaker) removed(e *kvevent.RouterEvent) {
	medium := mediumOf(e.Tier)
	for _, h := range e.Removed {
		if !s.forget(e.Tier, h) {
			s.count.ignoredRemoves.Add(1)
			continue
		}
		s.makeRoom()
		out := s.lastEvent(kvevent.Removed, medium)
		if out == nil {
			out = s.addEvent(kvevent.Removed, medium)
		}
		out.BlockHashes = append(out.BlockHashes, kv.EngineHash(h))
		s.grew(1, 9)
	}
}

// forget notes that h is no more in tier t; whether it had been said there.
func (s *speaker) forget(t kv.Tier, h kv.SequenceHash) (said bool) {
	in := s.told[h]
	said = in.said.Has(t)
	in.said, in.left = in.said.Without(t), in.left.Without(t)
	if said && in.said == 0 {
		s.known--
	}
	if in.left == 0 {
		s.drop(in.at)
		in.at, in.root = 0, false
	}
	if in == (blockState{}) {
		delete(s.told, h)
	} else {
		s.told[h] = in
	}
	return said
}

// lastEvent is the batch's last event if it is of that kind and medium.
func (s *speaker) lastEvent(k kvevent.Kind, medium string) *engineevent.Event {
	n := len(s.batch.Events)
	if n == 0 || s.batch.Events[n-1].Kind != k || s.batch.Events[n-1].Medium != medium {
		return nil
	}
	return &s.batch.Events[n-1]
}

// addEvent appends an empty event to the batch; its slices are those that lay there
// before.
func (s *speaker) addEvent(k kvevent.Kind, medium string) *engineevent.Event {
	if len(s.batch.Events) == kvevent.MaxEventsPerMessage {
		s.flush()
	}
	events := s.batch.Events
	if len(events) < cap(events) {
		events = events[:len(events)+1]
	} else {
		events = append(events, engineevent.Event{})
	}
	s.batch.Events = events
	e := &events[len(events)-1]
	*e = engineevent.Event{
		Kind: k, Medium: medium, Group: engineevent.NoGroup,
		BlockHashes: e.BlockHashes[:0], Tokens: e.Tokens[:0],
	}
	return e
}

// makeRoom sends the batch when it has no room for a block more.
func (s *speaker) makeRoom() {
	if s.blocks >= kvevent.MaxBlocksPerMessage || s.bytes >= maxBatchBytes {
		s.flush()
	}
}

func (s *speaker) grew(blocks, bytes int) {
	s.blocks += blocks
	s.bytes += bytes
}

// flush sends the batch, if there is something in it.
func (s *speaker) flush() {
	if len(s.batch.Events) == 0 {
		return
	}
	s.batch.Timestamp = float64(time.Now().UnixMicro()) / 1e6
	s.batch.Rank, s.batch.HasRank = s.rank, true
	s.send(&s.batch)
	s.count.events.Add(uint64(len(s.batch.Events)))
	s.count.blocks.Add(uint64(s.blocks))
	s.batch.Events = s.batch.Events[:0]
	s.blocks, s.bytes = 0, 0
}

// mediumOf is a tier's name in events: for host memory and disk, those of KVBM's
// consolidator.
func mediumOf(t kv.Tier) string {
	switch t {
	case kv.TierDevice:
		return "GPU"
	case kv.TierHost:
		return "CPU_TIER1"
	case kv.TierDisk:
		return "CPU_TIER2"
	}
	return "EXTERNAL"
}
