package consolidator

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// pendStoredLocked appends a newly resident block to the pending changes. It
// joins the last change when that stores the block's parent as its last block.
func (s *Stream) pendStoredLocked(t kv.Tier, h kv.SequenceHash, at *resident) {
	s.boundPendingLocked()
	if c := s.lastPendingLocked(kvevent.Stored, t); c != nil && at.hasParent() && s.stored[len(s.stored)-1].Hash == at.parent {
		c.n++
	} else {
		s.pending = append(s.pending, change{
			kind: kvevent.Stored, tier: t,
			parent: at.parent, hasParent: at.hasParent(), start: at.position(),
			from: len(s.stored), n: 1,
		})
	}
	s.stored = append(s.stored, kvevent.StoredBlock{Hash: h, Local: at.local})
}

// pendRemovedLocked appends a removal to the pending changes. It joins the last
// change when that is a removal from the same tier.
func (s *Stream) pendRemovedLocked(t kv.Tier, h kv.SequenceHash) {
	s.boundPendingLocked()
	if c := s.lastPendingLocked(kvevent.Removed, t); c != nil {
		c.n++
	} else {
		s.pending = append(s.pending, change{kind: kvevent.Removed, tier: t, from: len(s.removed), n: 1})
	}
	s.removed = append(s.removed, h)
}

// lastPendingLocked returns the last pending change if it is of that kind and
// tier and has room for a block more, else nil.
func (s *Stream) lastPendingLocked(k kvevent.Kind, t kv.Tier) *change {
	if len(s.pending) == 0 {
		return nil
	}
	c := &s.pending[len(s.pending)-1]
	if c.kind != k || c.tier != t || c.n == maxEventBlocks {
		return nil
	}
	return c
}

// boundPendingLocked makes room for one more pending change of one block.
func (s *Stream) boundPendingLocked() {
	if len(s.pending) < maxPendingEvents && len(s.stored)+len(s.removed) < maxPendingBlocks {
		return
	}
	s.stats.InlineFlushes++
	s.flushLocked()
}

func (s *Stream) resetPendingLocked() {
	s.pending = s.pending[:0]
	s.stored = s.stored[:0]
	s.removed = s.removed[:0]
}

func (s *Stream) flushLocked() {
	if len(s.pending) == 0 {
		return
	}
	s.events = s.events[:0]
	for _, c := range s.pending {
		s.lastID++
		e := kvevent.RouterEvent{Owner: s.owner, Tier: c.tier, ID: s.lastID, Kind: c.kind}
		switch c.kind {
		case kvevent.Stored:
			e.Parent, e.HasParent = c.parent, c.hasParent
			e.StartPosition, e.HasStart = c.start, true
			e.Blocks = s.stored[c.from : c.from+c.n]
		case kvevent.Removed:
			e.Removed = s.removed[c.from : c.from+c.n]
		}
		s.stats.Events++
		s.stats.Blocks += uint64(c.n)
		s.events = append(s.events, e)
	}
	for _, sink := range s.sinks {
		sink.Publish(s.events)
	}
	s.tellFollowersLocked()
	clear(s.events)
	s.resetPendingLocked()
}
