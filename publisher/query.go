package publisher

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	// queryQueue bounds the requests of one feed that wait; more are dropped, and
	// their askers ask again.
	queryQueue = 64
	// flushEvery chunks of an answer the connection is flushed, so that a long
	// answer does not fill the server's buffers faster than it forwards.
	flushEvery   = 16
	flushTimeout = 2 * time.Second
)

// answer is the goroutine that answers queries, one after the other: there is
// never more than one dump of a feed at a time.
func (f *Feed) answer(src Source, requests <-chan *nats.Msg) {
	defer f.running.Done()
	for {
		select {
		case <-f.stop:
			return
		case m := <-requests:
			f.answerOne(src, m)
		}
	}
}

func (f *Feed) answerOne(src Source, m *nats.Msg) {
	if m.Reply == "" {
		f.count.badQueries.Add(1)
		return
	}
	q, err := kvevent.DecodeQueryRequest(m.Data)
	if err != nil {
		f.count.badQueries.Add(1)
		f.reply(m.Reply, &kvevent.QueryReply{
			Kind: kvevent.QueryError, LastEventID: src.Status().LastEventID, Message: err.Error(),
		}, nil)
		return
	}
	f.count.queries.Add(1)
	if !q.HasStart {
		f.dump(src, m.Reply)
		return
	}
	// Ids begin at 1; who has nothing may ask from 0.
	start := max(q.StartID, 1)
	last := src.Status().LastEventID
	switch {
	case q.HasEnd && q.EndID < q.StartID:
		f.reply(m.Reply, &kvevent.QueryReply{
			Kind: kvevent.QueryInvalidRange, LastEventID: last,
			Message: fmt.Sprintf("end %d lies before start %d", q.EndID, q.StartID),
		}, nil)
	case start > last:
		f.reply(m.Reply, &kvevent.QueryReply{
			Kind: kvevent.QueryTooNew, LastEventID: last,
			Message: fmt.Sprintf("event %d has not happened yet", start),
		}, nil)
	default:
		end := last
		if q.HasEnd {
			end = min(end, q.EndID)
		}
		events, ok := f.journalRange(start, end)
		if !ok {
			f.dump(src, m.Reply)
			return
		}
		f.reply(m.Reply, &kvevent.QueryReply{Kind: kvevent.QueryEvents, LastEventID: end}, events)
	}
}

// journalRange copies the events from start to end; false when the journal does
// not hold all of them.
func (f *Feed) journalRange(start, end uint64) ([]kvevent.RouterEvent, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.journal.holds(start) || !f.journal.holds(end) {
		return nil, false
	}
	events := make([]kvevent.RouterEvent, 0, end-start+1)
	for id := start; id <= end; id++ {
		events = append(events, f.journal.ring[id%journalEvents])
	}
	return events, true
}

func (f *Feed) dump(src Source, to string) {
	f.count.dumps.Add(1)
	events, last, _ := src.Snapshot()
	f.reply(to, &kvevent.QueryReply{Kind: kvevent.QueryTreeDump, LastEventID: last}, events)
}

// reply sends an answer in chunks: r is the form of each of them. If one cannot
// be sent the answer is void and ends there; the asker asks again.
func (f *Feed) reply(to string, r *kvevent.QueryReply, events []kvevent.RouterEvent) {
	r.PublisherID = f.id
	maxBytes := f.nats.maxMessage()
	var buf []byte
	for !r.Final {
		n := chunkLen(events, maxBytes)
		r.Events, events = events[:n], events[n:]
		r.Final = len(events) == 0
		buf = kvevent.AppendQueryReply(buf[:0], r)
		if err := f.nats.conn.Publish(to, buf); err != nil {
			f.count.publishErrors.Add(1)
			f.count.voidAnswers.Add(1)
			return
		}
		r.Chunk++
		if !r.Final && r.Chunk%flushEvery == 0 && !f.flush() {
			f.count.voidAnswers.Add(1)
			return
		}
	}
}

// flush waits until the server has taken what was sent; false when it does not,
// or when the feed is closing.
func (f *Feed) flush() bool {
	select {
	case <-f.stop:
		return false
	default:
	}
	return f.nats.conn.FlushTimeout(flushTimeout) == nil
}

// chunkLen is how many of events go into one message.
func chunkLen(events []kvevent.RouterEvent, maxBytes int) int {
	room := newRoom(maxBytes)
	for i := range events {
		if !room.take(&events[i]) {
			return i
		}
	}
	return len(events)
}
