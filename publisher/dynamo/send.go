package dynamo

import (
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// maxEventBlocks is how many blocks an event may have on the wire: 512 are about
// 29 KiB, which fits any message.
const maxEventBlocks = 512

// Upper bounds of encoded sizes in bytes.
const (
	envelopeBytes = 256
	eventBytes    = 256
	storedBytes   = 64
	removedBytes  = 9
)

// What is said again goes out at restateRate bytes a second at most after the first
// restateBurst: the NATS server hangs up on a router to which it cannot pass on what
// waits, and keeps 64 MB for each unless it is told otherwise.
const (
	restateRate  = 100 << 20
	restateBurst = 32 << 20
)

// pace is how much was sent since when.
type pace struct {
	began time.Time
	sent  int
}

// due is how long to wait before more is sent.
func (p *pace) due(now time.Time) time.Duration {
	return time.Duration(float64(p.sent-restateBurst)/restateRate*float64(time.Second)) - now.Sub(p.began)
}

// pauseRestating counts the message that was sent and waits, if it was sent while
// everything is said again and that goes too fast. A source that closes does not wait.
func (s *Source) pauseRestating() {
	if s.restating.began.IsZero() {
		return
	}
	s.restating.sent += len(s.buf)
	d := s.restating.due(time.Now())
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

// room is what is left of one message.
type room struct {
	events, blocks, bytes int
	used                  bool
}

func (s *Source) newRoom() room {
	return room{
		events: kvevent.MaxEventsPerMessage,
		blocks: kvevent.MaxBlocksPerMessage,
		bytes:  int(s.plane.conn.MaxPayload()) - envelopeBytes,
	}
}

// take makes e part of the message, if it fits. The first event always does.
func (r *room) take(e *kvevent.RouterEvent) bool {
	size := eventBytes + storedBytes*len(e.Blocks) + removedBytes*len(e.Removed)
	if r.used && (r.events < 1 || r.blocks < e.NumBlocks() || r.bytes < size) {
		return false
	}
	r.used = true
	r.events--
	r.blocks -= e.NumBlocks()
	r.bytes -= size
	return true
}

// emit numbers events and sends them. If the connection does not take them, the
// source is broken, and the rest is numbered only. The events are not changed.
func (s *Source) emit(events []kvevent.RouterEvent) {
	left := s.newRoom()
	for i := range events {
		for rest := events[i]; ; {
			var piece kvevent.RouterEvent
			var more bool
			piece, rest, more = cut(rest)
			s.dress(&piece)
			if !left.take(&piece) {
				s.flush()
				left = s.newRoom()
				left.take(&piece)
			}
			s.ring.add(&piece)
			s.pieces = append(s.pieces, piece)
			if !more {
				break
			}
		}
	}
	s.flush()
	if len(events) > 0 {
		s.probing.reset(time.Now(), firstProbe)
	}
}

// cut takes the first piece that is not too long off an event; more says that rest
// is another event.
func cut(e kvevent.RouterEvent) (piece, rest kvevent.RouterEvent, more bool) {
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

// flush sends the numbered events as one message.
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
		s.broken = true
		s.count.unsent.Add(n)
	}
	clear(s.pieces)
	s.pieces = s.pieces[:0]
}

// publish reports whether the connection took the message. After the first one
// that it did not take, the others of a turn are not tried.
func (s *Source) publish() bool {
	if s.broken || !s.plane.conn.Connected() {
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
