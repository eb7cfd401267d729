package nats

import (
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

// sendPending sends the events that were not sent. While no server is connected
// they wait in the journal, and what leaves it meanwhile is skipped.
func (f *Feed) sendPending() {
	for f.nats.Connected() && f.takeBatch() {
		f.buf = kvevent.AppendEnvelope(f.buf[:0], &kvevent.Envelope{
			PublisherID: f.id,
			Sequence:    f.sequence,
			PublishedAt: uint64(time.Now().UnixMilli()),
			Topic:       kvevent.Topic,
			Events:      f.batch,
		})
		f.sequence++
		if f.publish(kvevent.EventsSubject(f.nats.opt.Cluster, f.id)) {
			f.count.events.Add(uint64(len(f.batch)))
		}
		clear(f.batch)
	}
}

// takeBatch moves the next message's events to f.batch; false: there are none.
func (f *Feed) takeBatch() bool {
	maxBytes := f.nats.maxMessage()
	f.mu.Lock()
	defer f.mu.Unlock()
	first, next := f.journal.Held()
	if f.unsent < first {
		if f.unsent > 0 {
			f.count.skipped.Add(first - f.unsent)
		}
		f.unsent = first
	}
	if !f.journal.Holds(f.unsent) {
		return false
	}
	f.batch = f.journal.AppendMessage(f.batch[:0], f.unsent, next-1, maxBytes)
	f.unsent += uint64(len(f.batch))
	return true
}

func (f *Feed) sendAnnouncement(s publisher.Status) {
	if !f.nats.Connected() {
		f.count.silent.Add(1)
		return
	}
	f.buf = kvevent.AppendAnnouncement(f.buf[:0], &kvevent.Announcement{
		PublisherID: f.id,
		Owner:       f.owner,
		Pool:        f.meta.Pool,
		Namespace:   f.meta.Namespace,
		Model:       f.meta.Model,
		BlockSize:   f.meta.BlockSize,
		Card:        f.meta.Card,
		LastEventID: s.LastEventID,
		Digest:      s.Digest,
		Blocks:      s.Blocks,
		Health:      s.Health,
	})
	if f.publish(kvevent.AnnounceSubject(f.nats.opt.Cluster, f.id)) {
		f.count.announcements.Add(1)
	}
}

// publish sends f.buf. What the connection refuses is lost: the next
// announcement tells the consumers.
func (f *Feed) publish(subject string) bool {
	if err := f.nats.conn.Publish(subject, f.buf); err != nil {
		f.count.publishErrors.Add(1)
		f.log.Debug("message lost", zap.String("subject", subject), zap.Error(err))
		return false
	}
	f.count.messages.Add(1)
	f.count.bytes.Add(uint64(len(f.buf)))
	return true
}
