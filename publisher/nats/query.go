package nats

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

const (
	// queryQueue bounds the requests of one feed that wait, and maxAskers those of
	// them that wait for a dump; more are dropped, and their askers ask again.
	queryQueue = 64
	maxAskers  = 64
	// flushEvery chunks of an answer the connection is flushed, so that a long
	// answer does not fill the server's buffers faster than it forwards.
	flushEvery   = 16
	flushTimeout = 2 * time.Second
	// dumpRate is how many bytes a second of a dump one asker is sent at most, after
	// the first dumpBurst. The server hangs up on a client that it cannot get rid of
	// its messages to; it keeps 64 MB for each unless it is told otherwise.
	dumpRate  = 100 << 20
	dumpBurst = 32 << 20
	// keepDump is how long a dump is kept for the next asker, and for one that has
	// read a part of it.
	keepDump = 10 * time.Second
	// maxPartChunks bounds what one request for a part of an answer gets.
	maxPartChunks = 64
)

// answerer answers the queries of one feed. Ranges are answered at once, between
// the chunks of a dump if need be; who wants a dump waits for the one that is
// being sent, and all who wait get the next one together. Its fields belong to
// one goroutine.
type answerer struct {
	feed     *Feed
	src      publisher.Source
	requests <-chan *nats.Msg
	// askers are those who wait for a dump.
	askers []asker
	// cache is the last dump, forgotten when idle fires; dumps counts those there were.
	cache dump
	dumps uint64
	idle  *time.Timer
	buf   []byte
}

// asker is who waits for a dump: its reply subject, and how many chunks it takes
// now; 0 is all of them.
type asker struct {
	reply     string
	maxChunks uint32
}

// answer is the goroutine that answers queries.
func (f *Feed) answer(src publisher.Source, requests <-chan *nats.Msg) {
	defer f.running.Done()
	a := answerer{feed: f, src: src, requests: requests, idle: time.NewTimer(keepDump)}
	defer a.idle.Stop()
	for {
		select {
		case <-f.stop:
			return
		case m := <-requests:
			a.take(m)
			a.takeWaiting()
		case <-a.idle.C:
			a.cache = dump{}
		}
		for len(a.askers) > 0 && !f.stopping() {
			a.sendDump()
			a.idle.Reset(keepDump)
		}
	}
}

func (f *Feed) stopping() bool {
	select {
	case <-f.stop:
		return true
	default:
		return false
	}
}

// takeWaiting takes the requests that wait now.
func (a *answerer) takeWaiting() {
	for range queryQueue {
		select {
		case m := <-a.requests:
			a.take(m)
		default:
			return
		}
	}
}

// take answers a request, or lets it wait for a dump.
func (a *answerer) take(m *nats.Msg) {
	f := a.feed
	if m.Reply == "" {
		f.count.badQueries.Add(1)
		return
	}
	q, err := kvevent.DecodeQueryRequest(m.Data)
	if err != nil {
		f.count.badQueries.Add(1)
		a.reply(m.Reply, &kvevent.QueryReply{
			Kind: kvevent.QueryError, LastEventID: a.src.Status().LastEventID, Message: err.Error(),
		}, nil)
		return
	}
	f.count.queries.Add(1)
	switch {
	case q.DumpID != 0 && a.cache.held && q.DumpID == a.cache.id && a.cache.maxBytes <= f.nats.maxMessage():
		a.sendPart(m.Reply, q.FirstChunk, q.MaxChunks)
		return
	case q.DumpID == 0 && q.HasStart && a.answerRange(m.Reply, &q):
		return
	}
	if len(a.askers) == maxAskers {
		f.count.droppedQueries.Add(1)
		return
	}
	a.askers = append(a.askers, asker{m.Reply, q.MaxChunks})
}

// answerRange answers from the journal; false when only a dump can answer: the
// events are no longer there, or none is.
func (a *answerer) answerRange(to string, q *kvevent.QueryRequest) bool {
	f := a.feed
	// Ids begin at 1; who has nothing may ask from 0.
	start := max(q.StartID, 1)
	last := a.src.Status().LastEventID
	switch {
	case q.HasEnd && q.EndID < q.StartID:
		a.reply(to, &kvevent.QueryReply{
			Kind: kvevent.QueryInvalidRange, LastEventID: last,
			Message: fmt.Sprintf("end %d lies before start %d", q.EndID, q.StartID),
		}, nil)
		return true
	case f.journalEmpty():
		return false
	case start > last:
		a.reply(to, &kvevent.QueryReply{
			Kind: kvevent.QueryTooNew, LastEventID: last,
			Message: fmt.Sprintf("event %d has not happened yet", start),
		}, nil)
		return true
	}
	end := last
	if q.HasEnd {
		end = min(end, q.EndID)
	}
	events, ok := f.journalRange(start, end)
	if ok {
		events = firstChunks(fromLastCleared(events), q.MaxChunks, f.nats.maxMessage())
		a.reply(to, &kvevent.QueryReply{Kind: kvevent.QueryEvents, LastEventID: events[len(events)-1].ID}, events)
	}
	return ok
}

// firstChunks cuts events down to what fits into n messages; 0 is no bound.
func firstChunks(events []kvevent.RouterEvent, n uint32, maxBytes int) []kvevent.RouterEvent {
	if n == 0 {
		return events
	}
	end := 0
	for range min(n, maxPartChunks) {
		end += publisher.MessageLen(events[end:], maxBytes)
	}
	return events[:end]
}

// fromLastCleared leaves out what a later event makes void.
func fromLastCleared(events []kvevent.RouterEvent) []kvevent.RouterEvent {
	for i := len(events) - 1; i > 0; i-- {
		if events[i].Kind == kvevent.Cleared {
			return events[i:]
		}
	}
	return events
}

func (f *Feed) journalEmpty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first, next := f.journal.Held()
	return first == next
}

func (f *Feed) journalHolds(id uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.journal.Holds(id)
}

// journalRange copies the events from start to end; false when the journal does
// not hold all of them.
func (f *Feed) journalRange(start, end uint64) ([]kvevent.RouterEvent, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.journal.Range(start, end)
}

// sendDump answers all who wait for a dump now: those who read it in parts get the
// first one.
func (a *answerer) sendDump() {
	askers := a.askers
	a.askers = nil
	shared := len(askers)
	if a.refresh(time.Now()) {
		shared--
	}
	a.feed.count.dumps.Add(uint64(len(askers)))
	a.feed.count.sharedDumps.Add(uint64(shared))
	var whole []string
	for _, to := range askers {
		if to.maxChunks == 0 {
			whole = append(whole, to.reply)
		} else {
			a.sendPart(to.reply, 0, to.maxChunks)
		}
	}
	if len(whole) > 0 {
		a.send(whole, &kvevent.QueryReply{Kind: kvevent.QueryTreeDump, LastEventID: a.cache.last}, a.cache.events)
	}
}

// sendPart sends up to n chunks of the cached dump, which stays as it is for a
// while so that the asker can read on.
func (a *answerer) sendPart(to string, first, n uint32) {
	f := a.feed
	maxBytes := f.nats.maxMessage()
	r := kvevent.QueryReply{PublisherID: f.id, DumpID: a.cache.id, Kind: kvevent.QueryTreeDump, LastEventID: a.cache.last}
	var buf []byte
	for i := first; i-first < min(n, maxPartChunks) && !r.Final; i++ {
		var ok bool
		if r.Events, r.Final, ok = a.cache.chunk(i, maxBytes); !ok {
			// The asker has read ahead of the last chunk, which is on its way to it.
			return
		}
		r.Chunk = i
		buf = kvevent.AppendQueryReply(buf[:0], &r)
		if err := f.nats.conn.Publish(to, buf); err != nil {
			f.count.publishErrors.Add(1)
			f.count.voidAnswers.Add(1)
			return
		}
	}
	if !r.Final {
		a.cache.readUntil = time.Now().Add(keepDump)
	}
	a.idle.Reset(keepDump)
}

// reply sends an answer to one asker.
func (a *answerer) reply(to string, r *kvevent.QueryReply, events []kvevent.RouterEvent) {
	a.send([]string{to}, r, events)
}

// send sends an answer in chunks, each of them encoded once for all askers: r is
// the form of each of them. If a chunk cannot be sent the answer is void and ends
// there; the askers ask again.
func (a *answerer) send(askers []string, r *kvevent.QueryReply, events []kvevent.RouterEvent) {
	f := a.feed
	r.PublisherID = f.id
	maxBytes := f.nats.maxMessage()
	began, sent := time.Now(), 0
	// Ranges that are answered while the askers pause have a buffer of their own.
	buf := a.buf
	a.buf = nil
	defer func() { a.buf = buf }()
	for !r.Final {
		n := publisher.MessageLen(events, maxBytes)
		r.Events, events = events[:n], events[n:]
		r.Final = len(events) == 0
		buf = kvevent.AppendQueryReply(buf[:0], r)
		for _, to := range askers {
			if err := f.nats.conn.Publish(to, buf); err != nil {
				f.count.publishErrors.Add(1)
				f.count.voidAnswers.Add(uint64(len(askers)))
				return
			}
		}
		r.Chunk++
		sent += len(buf)
		if !r.Final && r.Chunk%flushEvery == 0 && !a.pause(pauseFor(sent, time.Since(began)), r.Kind == kvevent.QueryTreeDump) {
			f.count.voidAnswers.Add(uint64(len(askers)))
			return
		}
	}
}

// pauseFor is how long to wait after sent bytes in so much time.
func pauseFor(sent int, took time.Duration) time.Duration {
	return time.Duration(float64(sent-dumpBurst)/dumpRate*float64(time.Second)) - took
}

// pause waits until the server has taken what was sent and d has passed, and
// meanwhile, if it may, answers others; false when the server does not take it, or
// when the feed is closing.
func (a *answerer) pause(d time.Duration, mayAnswer bool) bool {
	f := a.feed
	if f.stopping() || f.nats.conn.FlushTimeout(flushTimeout) != nil {
		return false
	}
	var requests <-chan *nats.Msg
	if mayAnswer {
		a.takeWaiting()
		requests = a.requests
	}
	if d <= 0 {
		return true
	}
	f.count.dumpPauses.Add(1)
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-f.stop:
			return false
		case <-timer.C:
			return true
		case m := <-requests:
			a.take(m)
		}
	}
}
