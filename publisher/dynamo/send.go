package dynamo

import (
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

// maxEventBlocks bounds the blocks of an event on the wire. 512 blocks take about 29 KiB, which
// fits any message.
const maxEventBlocks = 512

// pauseRestating limits the rate at which the source sends its whole state, so that readers can keep
// up: it waits after a message of the state. A source that closes does not wait.
func (s *Source) pauseRestating() {
	if s.pace == nil { // the message is of live events
		return
	}
	s.pace.Sent(len(s.buf))
	d := s.pace.Pause(time.Now())
	if d <= 0 {
		return
	}
	s.count.restatePauses.Add(1)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.stop:
	case <-timer.C:
	}
}

func (s *Source) newBudget() publisher.Budget {
	return publisher.NewBudget(int(s.plane.conn.MaxPayload()))
}

// emit numbers events and sends them, in pieces of at most maxEventBlocks. Once the connection
// refuses a message, it sets mustRestate and only numbers the rest: the numbers show routers the
// gap. The events are not changed.
func (s *Source) emit(events []kvevent.RouterEvent) {
	left := s.newBudget()
	for i := range events {
		for rest := events[i]; ; {
			var piece kvevent.RouterEvent
			var more bool
			piece, rest, more = split(rest)
			s.toWire(&piece)
			if !left.Take(&piece) {
				s.flush()
				left = s.newBudget()
				left.Take(&piece)
			}
			piece.ID = s.nextID()
			s.sent.Append(piece.ID, piece)
			s.pieces = append(s.pieces, piece)
			if !more {
				break
			}
		}
	}
	s.flush()
	if len(events) > 0 { // probes follow the last event
		s.beginProbes(time.Now())
	}
}

// split splits the first maxEventBlocks blocks off an event that may be too large for a message.
// more is false when no rest is left.
func split(e kvevent.RouterEvent) (piece, rest kvevent.RouterEvent, more bool) {
	piece, rest = e, e
	switch {
	case len(e.Blocks) > maxEventBlocks:
		piece.Blocks, rest.Blocks = e.Blocks[:maxEventBlocks], e.Blocks[maxEventBlocks:]
		rest.Parent, rest.HasParent = piece.Blocks[maxEventBlocks-1].Hash, true
	case len(e.Removed) > maxEventBlocks:
		piece.Removed, rest.Removed = e.Removed[:maxEventBlocks], e.Removed[maxEventBlocks:]
	default:
		return piece, kvevent.RouterEvent{}, false
	}
	return piece, rest, true
}

// flush sends the numbered events of s.pieces as one message. If the message cannot be sent, the
// state must be restated.
func (s *Source) flush() {
	if len(s.pieces) == 0 {
		return
	}
	n := uint64(len(s.pieces))
	if s.publish() {
		s.count.events.Add(n)
		s.count.messages.Add(1)
		s.count.bytes.Add(uint64(len(s.buf)))
		s.pauseRestating()
	} else {
		s.mustRestate = true
		s.count.unsent.Add(n)
	}
	clear(s.pieces)
	s.pieces = s.pieces[:0]
}

// publish sends s.pieces as one message and reports whether the connection took it. After a
// refused message publish does not try the others of the turn, because the restatement has their
// blocks.
func (s *Source) publish() bool {
	if s.mustRestate || !s.plane.conn.Connected() {
		return false
	}
	s.buf = kvevent.AppendDynamoEnvelope(s.buf[:0], &kvevent.Envelope{
		PublisherID: s.id,
		Sequence:    s.sequence,
		PublishedAt: uint64(time.Now().UnixMilli()),
		Events:      s.pieces,
	}, kvevent.ClearAll)
	s.sequence++
	if err := s.plane.conn.Publish(s.plane.eventsSubject, s.buf); err != nil {
		s.count.publishErrors.Add(1)
		s.log.Debug("message lost", zap.Error(err))
		return false
	}
	return true
}
