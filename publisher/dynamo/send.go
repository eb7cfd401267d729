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

// paceState limits the rate at which the source sends its whole state, so that readers can keep
// up: flush calls it after each message, and it waits while the messages of a state are sent. A
// source that closes does not wait.
func (s *Source) paceState() {
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

// emit numbers events of the stream and sends them in messages. An event of more than
// maxEventBlocks becomes several events. Once the connection refuses a message, emit sets
// mustSendState and only numbers the rest: the numbers show routers the gap. The given events
// are not changed. The journal keeps the sent ones for recovery queries. Dynamo's routers know the
// primary KV group only, so events of the others are left out.
func (s *Source) emit(events []kvevent.RouterEvent) {
	left := s.newBudget()
	for i := range events {
		if events[i].Group != 0 {
			continue
		}
		for rest := events[i]; ; {
			var piece kvevent.RouterEvent
			var more bool
			piece, rest, more = split(rest)
			s.toWire(&piece)
			if !left.Take(&piece) { // the message is full
				s.flush()
				left = s.newBudget()
				left.Take(&piece)
			}
			piece.ID = s.nextID()
			s.journal.Append(piece.ID, piece)
			s.outgoing = append(s.outgoing, piece)
			if !more {
				break
			}
		}
	}
	s.flush()
	if len(events) > 0 { // a probe is due some time after the last event
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

// flush sends the numbered events of s.outgoing as one message, and empties s.outgoing. If the
// message cannot be sent, it sets mustSendState: routers then get the whole state.
func (s *Source) flush() {
	if len(s.outgoing) == 0 {
		return
	}
	n := uint64(len(s.outgoing))
	if s.publish() {
		s.count.events.Add(n)
		s.count.messages.Add(1)
		s.count.bytes.Add(uint64(len(s.buf)))
		s.paceState()
	} else {
		s.mustSendState = true
		s.count.unsent.Add(n)
	}
	clear(s.outgoing)
	s.outgoing = s.outgoing[:0]
}

// publish sends s.outgoing, the numbered events, as one message, and reports whether the connection
// took it. While mustSendState is set it sends nothing: the state that is sent next has the
// blocks of these events.
func (s *Source) publish() bool {
	if s.mustSendState || !s.plane.conn.Connected() {
		return false
	}
	s.buf = kvevent.AppendDynamoEnvelope(s.buf[:0], &kvevent.Envelope{
		PublisherID: s.id,
		Sequence:    s.sequence,
		PublishedAt: uint64(time.Now().UnixMilli()),
		Events:      s.outgoing,
	}, kvevent.ClearAll)
	s.sequence++
	if err := s.plane.conn.Publish(s.plane.eventsSubject, s.buf); err != nil {
		s.count.publishErrors.Add(1)
		s.log.Debug("message is not sent", zap.Error(err))
		return false
	}
	return true
}
