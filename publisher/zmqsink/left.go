package zmqsink

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Bounds of what is done for the blocks that had to be left out.
const (
	// retryEvery is the least time between two turns of retries.
	retryEvery = 250 * time.Millisecond
	// maxLeft is how many are kept, maxWanted of how many somebody's use is remembered
	// from one turn to the next.
	maxLeft   = 2 << 20
	maxWanted = 64 << 10
	// turnSweep is how many of those that nobody wanted get a turn at once, turnSteps how
	// many blocks are looked at in it, with those before them.
	turnSweep = 8 << 10
	turnSteps = 64 << 10
)

// leftBlock is a block that is in some tier in which it had to be left out.
type leftBlock struct{ hash, parent kv.SequenceHash }

// leftBlocks are those that are said as soon as they can be. A restarted agent knows
// no tokens; requests bring them, and what comes first in most of them would never be
// stored again by an engine that has it.
type leftBlocks struct {
	blocks []leftBlock // one is at blockState.at-1
	cursor int         // where the sweep goes on
	// wanted are blocks that were stored behind one that had to be left out: the tokens
	// of all that comes before them are known, most of the time.
	wanted []kv.SequenceHash
	last   time.Time // of the last turn
	// path and hopeless are scratch space of a turn.
	path     []kv.SequenceHash
	hopeless map[kv.SequenceHash]struct{}
}

// add keeps a block and returns its place; 0: there is no room.
func (l *leftBlocks) add(h, parent kv.SequenceHash) (at uint32) {
	if len(l.blocks) >= maxLeft {
		return 0
	}
	l.blocks = append(l.blocks, leftBlock{h, parent})
	return uint32(len(l.blocks))
}

// clear forgets all.
func (l *leftBlocks) clear() { l.blocks, l.wanted, l.cursor = l.blocks[:0], l.wanted[:0], 0 }

// due is when the next turn is; zero: nothing is left.
func (l *leftBlocks) due() time.Time {
	if len(l.blocks) == 0 {
		return time.Time{}
	}
	return l.last.Add(retryEvery)
}

// leave notes that h, which is in tier t, has to be left out there.
func (s *speaker) leave(t kv.Tier, parent kv.SequenceHash, hasParent bool, h kv.SequenceHash, in blockState) {
	in.left, in.root = in.left.With(t), !hasParent
	if in.at == 0 {
		if in.at = s.left.add(h, parent); in.at == 0 {
			s.count.unkept.Add(1)
		}
	}
	s.told[h] = in
}

// drop takes the block at a place, which may be 0, out of those that are left.
func (s *speaker) drop(at uint32) {
	if at == 0 {
		return
	}
	blocks := s.left.blocks
	last := blocks[len(blocks)-1]
	moved := s.told[last.hash]
	moved.at = at
	s.told[last.hash] = moved
	blocks[at-1] = last
	s.left.blocks = blocks[:len(blocks)-1]
}

// want remembers that block h was stored and left out.
func (s *speaker) want(h kv.SequenceHash) {
	if s.told[h].at == 0 {
		return
	}
	if len(s.left.wanted) >= maxWanted {
		s.count.unwanted.Add(1) // the sweep comes to it
		return
	}
	s.left.wanted = append(s.left.wanted, h)
}

// stated says that what was stored until now is a state, which nobody uses for that,
// and was asked for just now.
func (s *speaker) stated(now time.Time) { s.left.wanted, s.left.last = s.left.wanted[:0], now }

// retry takes a turn: it says what was left out and can be said now.
func (s *speaker) retry(now time.Time) {
	s.left.last = now
	budget := turnSteps
	done := 0
	for ; done < len(s.left.wanted) && budget > 0; done++ {
		s.climb(s.left.wanted[done], &budget)
	}
	s.left.wanted = append(s.left.wanted[:0], s.left.wanted[done:]...)
	s.sweep(&budget)
	clear(s.left.hopeless)
	s.countHeld()
	s.flush()
}

// sweep climbs from the next ones in their order.
func (s *speaker) sweep(budget *int) {
	l := &s.left
	for n := min(turnSweep, len(l.blocks)); n > 0 && *budget > 0 && len(l.blocks) > 0; n-- {
		if l.cursor >= len(l.blocks) {
			l.cursor = 0
		}
		h := l.blocks[l.cursor].hash
		s.climb(h, budget)
		if l.cursor < len(l.blocks) && l.blocks[l.cursor].hash == h {
			l.cursor++ // of one that was said, another has the place
		}
	}
}

// climb says h and what has to be said before it, the first of them first. Each block
// costs one of the budget; one above which nothing can be said costs it once a turn.
func (s *speaker) climb(h kv.SequenceHash, budget *int) {
	l := &s.left
	l.path = l.path[:0]
	for top := false; !top; {
		in := s.told[h]
		_, hopeless := l.hopeless[h]
		if in.at == 0 || hopeless || *budget == 0 {
			s.giveUp(l.path)
			return
		}
		*budget--
		l.path = append(l.path, h)
		parent := l.blocks[in.at-1].parent
		top = in.root || s.told[parent].said != 0
		h = parent
	}
	for n := len(l.path); n > 0; n-- {
		if !s.sayLeft(l.path[n-1]) {
			s.giveUp(l.path[:n])
			return
		}
	}
}

// giveUp notes that these cannot be said in this turn.
func (s *speaker) giveUp(path []kv.SequenceHash) {
	if s.left.hopeless == nil {
		s.left.hopeless = make(map[kv.SequenceHash]struct{})
	}
	for _, h := range path {
		s.left.hopeless[h] = struct{}{}
	}
}

// sayLeft says a block that is left, in every tier in which it is, if its tokens are
// known now. The block before it has been said.
func (s *speaker) sayLeft(h kv.SequenceHash) bool {
	s.count.retries.Add(1)
	if !s.describe(h) {
		return false
	}
	s.count.recovered.Add(1)
	in := s.told[h]
	s.sayIn(in, s.left.blocks[in.at-1].parent, !in.root, h)
	return true
}
