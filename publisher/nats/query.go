package nats

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

const (
	// queryQueue bounds the requests of one feed that wait, and maxWaiters those of
	// them that wait for a dump. A request beyond the bounds is dropped, and its sender
	// asks again.
	queryQueue = 64
	// maxPendingHints bounds the read-ahead hints of one feed that wait.
	maxPendingHints = 16
	maxWaiters      = 64
	// The connection is flushed after every flushEvery chunks of an answer, so that a
	// long answer does not fill the server's buffers faster than it forwards.
	flushEvery   = 16
	flushTimeout = 2 * time.Second
	// keepDump is the time for which a dump is kept for the next query, and for a reader of
	// its parts.
	keepDump = 10 * time.Second
	// maxPartChunks bounds the chunks in the answer to one request for a part.
	maxPartChunks = 64
)

// answerer answers the queries of one feed. A range is answered at once, between two
// chunks of a dump if need be. Queries that need a dump wait for the dump that is being
// sent, and share the next one. The fields belong to one goroutine.
type answerer struct {
	feed     *Feed
	src      publisher.Source
	requests <-chan *nats.Msg
	waiters  []waiter // wait for a dump
	// dump is the last one sent, if hasDump. It is dropped when idle fires.
	dump    publisher.Dump
	hasDump bool
	// dumpID names dump to the readers of its parts; a feed gives out each id once.
	dumpID uint64
	// readUntil is the time until which dump is not replaced, for a reader of its parts.
	readUntil time.Time
	idle      *time.Timer
	buf       []byte
}

// waiter is a query that waits for a dump: its reply subject, and how many chunks it takes
// now; 0 is all of them.
type waiter struct {
	reply     string
	maxChunks uint32
}

// answer answers the queries about src that arrive in requests until the feed stops. It runs in a
// goroutine of its own. Lost events are answered at once; queries that need a dump of the state
// wait in a.waiters and share one. A dump that nobody has asked for in keepDump is dropped.
func (f *Feed) answer(src publisher.Source, requests <-chan *nats.Msg) {
	a := answerer{feed: f, src: src, requests: requests, idle: time.NewTimer(keepDump)}
	defer a.idle.Stop()
	for {
		select {
		case <-f.Stopping():
			return
		case m := <-requests:
			a.take(m)
			a.takeWaiting()
		case <-a.idle.C:
			a.dump, a.hasDump = publisher.Dump{}, false
		}
		for len(a.waiters) > 0 && !f.Stopped() {
			a.sendDump()
			a.idle.Reset(keepDump)
		}
	}
}

// takeWaiting takes the requests that are queued already, so that they share one dump.
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

// take answers the query in message m: with lost events from the journal, or with the next part of
// the held dump for a reader that reads it in parts. Else the query joins a.waiters, which
// wait for the next dump. A message that is no query is counted.
func (a *answerer) take(m *nats.Msg) {
	f := a.feed
	if m.Reply == "" {
		f.Count(func(s *publisher.FeedStats) { s.BadQueries++ })
		return
	}
	q, err := kvevent.DecodeQueryRequest(m.Data)
	if err != nil {
		f.Count(func(s *publisher.FeedStats) { s.BadQueries++ })
		a.reply(m.Reply, kvevent.QueryReply{
			Kind: kvevent.QueryError, LastEventID: a.src.Status().LastEventID, Message: err.Error(),
		}, nil)
		return
	}
	f.Count(func(s *publisher.FeedStats) { s.Queries++ })
	switch {
	// The reader asks for the rest of the dump that it has begun to read.
	case q.DumpID != 0 && a.hasDump && q.DumpID == a.dumpID && a.dump.Fits(f.wire.MaxMessage()):
		a.sendPart(m.Reply, q.FirstChunk, q.MaxChunks)
		return
	case q.DumpID == 0 && q.HasStart && a.answerRange(m.Reply, &q):
		return
	}
	if len(a.waiters) == maxWaiters {
		f.Count(func(s *publisher.FeedStats) { s.DroppedQueries++ })
		return
	}
	a.waiters = append(a.waiters, waiter{m.Reply, q.MaxChunks})
}

// answerRange answers query q for lost events from the journal, to the reply subject to. It
// returns false when only a dump can answer. With an empty journal a dump answers even a query
// for an event that has not happened: the reader may have the ids of an earlier publisher.
func (a *answerer) answerRange(to string, q *kvevent.QueryRequest) bool {
	r, events, ok := a.feed.AnswerRange(a.src, q)
	first, next := a.feed.Held()
	isEmpty := first == next
	if !ok || isEmpty && r.Kind == kvevent.QueryTooNew {
		return false
	}
	if r.Kind == kvevent.QueryEvents {
		// A cleared event voids the events before it. A reader that limits the chunks asks again.
		events = firstChunks(publisher.FromLastCleared(events), q.MaxChunks, a.feed.wire.MaxMessage())
		r.LastEventID = events[len(events)-1].ID
	}
	a.reply(to, r, events)
	return true
}

// firstChunks returns the first events that fit into n messages; n 0 for all.
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

// sendDump answers all queries that wait for a dump (a.waiters) with one dump, new or brought up
// to date. A reader that limits the chunks gets the first part, and asks for the next one. The
// others get the whole dump.
func (a *answerer) sendDump() {
	waiters := a.waiters
	a.waiters = nil
	shared := len(waiters)
	if a.refresh(time.Now()) { // one waiter has cost a snapshot
		shared--
	}
	a.feed.Count(func(s *publisher.FeedStats) { s.Dumps += uint64(len(waiters)) })
	a.feed.sharedDumps.Add(uint64(shared))
	var whole []string
	for _, to := range waiters {
		if to.maxChunks == 0 {
			whole = append(whole, to.reply)
		} else {
			a.sendPart(to.reply, 0, to.maxChunks)
		}
	}
	if len(whole) > 0 {
		a.send(whole, kvevent.QueryReply{Kind: kvevent.QueryTreeDump, LastEventID: a.dump.Last}, a.dump.Events)
	}
}

// refresh makes a.dump one that brings its readers up to date. It keeps a dump that is being read
// in parts while the journal has all later events. Else it applies the later events to the dump.
// Else it takes a new snapshot, the costly way, and returns true. The old dump is dropped first,
// so there is never more than one.
func (a *answerer) refresh(now time.Time) (taken bool) {
	status := a.src.Status()
	if a.hasDump && a.dump.Fits(a.feed.wire.MaxMessage()) {
		if a.beingRead(&status, now) {
			return false
		}
		if d, ok := a.feed.Extend(&a.dump, &status); ok {
			if d.Last != a.dump.Last { // a newer dump, and so another id
				a.dump, a.readUntil = d, time.Time{}
				a.dumpID++
			}
			return false
		}
	}
	a.dump = publisher.Dump{}
	a.dump, a.hasDump, a.readUntil = publisher.TakeDump(a.src), true, time.Time{}
	a.dumpID++
	a.feed.Count(func(s *publisher.FeedStats) { s.Snapshots++ })
	return true
}

// beingRead reports whether the dump has to stay as it is for a reader of its parts,
// and every other reader can continue with events of the journal.
func (a *answerer) beingRead(status *publisher.Status, now time.Time) bool {
	if !now.Before(a.readUntil) || status.LastEventID <= a.dump.Last { // nobody reads, or nothing is new
		return false
	}
	_, ok := a.feed.Range(a.dump.Last+1, a.dump.Last+1) // the journal has this event and all later ones
	return ok
}

// sendPart sends up to n chunks of the held dump, from chunk first on, to the reply subject to.
// Unless that was the rest, the dump then stays as it is for keepDump, so that the reader can ask
// for more of the same dump.
func (a *answerer) sendPart(to string, first, n uint32) {
	r := kvevent.QueryReply{PublisherID: a.feed.PublisherID(), DumpID: a.dumpID, Kind: kvevent.QueryTreeDump, LastEventID: a.dump.Last}
	var buf []byte
	for i := first; i-first < min(n, maxPartChunks) && !r.Final; i++ {
		var ok bool
		if r.Events, r.Final, ok = a.dump.Chunk(i, a.feed.wire.MaxMessage()); !ok {
			return // the reader asked beyond the last chunk, which is on its way
		}
		r.Chunk = i
		buf = kvevent.AppendQueryReply(buf[:0], &r)
		if !a.publish(to, buf) {
			a.void(1)
			return
		}
	}
	if !r.Final {
		a.readUntil = time.Now().Add(keepDump)
	}
	a.idle.Reset(keepDump)
}

// reply sends an answer to one reader.
func (a *answerer) reply(to string, r kvevent.QueryReply, events []kvevent.RouterEvent) {
	a.send([]string{to}, r, events)
}

// send sends an answer, r with events, in chunks to the reply subjects in readers. Each chunk is
// encoded once for all readers. Pauses keep the rate that readers can follow. If a chunk cannot be
// sent the answer is void and ends there; the readers ask again.
func (a *answerer) send(readers []string, r kvevent.QueryReply, events []kvevent.RouterEvent) {
	r.PublisherID = a.feed.PublisherID()
	pace := publisher.NewPace(time.Now())
	// Queries that are answered in the pauses use a.buf: this answer takes the buffer meanwhile.
	buf := a.buf
	a.buf = nil
	defer func() { a.buf = buf }()
	for r := range publisher.Chunks(&r, events, a.feed.wire.MaxMessage()) {
		buf = kvevent.AppendQueryReply(buf[:0], r)
		for _, to := range readers {
			if !a.publish(to, buf) {
				a.void(len(readers))
				return
			}
		}
		pace.Sent(len(buf))
		pauses := !r.Final && (r.Chunk+1)%flushEvery == 0
		if pauses && !a.pause(pace.Pause(time.Now()), r.Kind == kvevent.QueryTreeDump) {
			a.void(len(readers))
			return
		}
	}
}

// publish sends one chunk to a reply subject. It returns false, and counts an error, when the
// connection refuses the chunk.
func (a *answerer) publish(to string, data []byte) bool {
	err := a.feed.wire.conn.conn.Publish(to, data)
	if err != nil {
		a.feed.wire.errors.Add(1)
	}
	return err == nil
}

// void counts answers that ended early.
func (a *answerer) void(answers int) {
	a.feed.Count(func(s *publisher.FeedStats) { s.VoidAnswers += uint64(answers) })
}

// pause waits, between two chunks of an answer, until the server has taken the sent messages and d
// has passed. With mayAnswer it answers other queries while it waits. It returns false when the
// server does not take the messages, or when the feed is closing: the answer ends there.
func (a *answerer) pause(d time.Duration, mayAnswer bool) bool {
	f := a.feed
	if f.Stopped() || f.wire.conn.conn.FlushTimeout(flushTimeout) != nil {
		return false
	}
	var requests <-chan *nats.Msg // nil is never ready
	if mayAnswer {
		a.takeWaiting()
		requests = a.requests
	}
	if d <= 0 {
		return true
	}
	f.dumpPauses.Add(1)
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-f.Stopping():
			return false
		case <-timer.C:
			return true
		case m := <-requests:
			a.take(m)
		}
	}
}
