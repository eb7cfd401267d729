package httpfeed

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

const (
	// noByteLimit is for messages that are bounded by their events and blocks alone.
	noByteLimit = math.MaxInt
	// maxAnswers bounds the queries of one feed that are being answered. A query beyond
	// the bound is refused, and its sender asks again.
	maxAnswers = 64
	// maxDumps bounds the snapshots of one feed that are kept because they are being
	// written. Queries that need another one wait and share it.
	maxDumps = 4
	// answerTimeout bounds the writing of one answer. Clients do not wait longer.
	answerTimeout = 30 * time.Second
)

// errBusy says that too many queries are being answered already.
var errBusy = fmt.Errorf("%d queries are being answered already", maxAnswers)

// Feed publishes one owner's events.
type Feed struct {
	*publisher.Feed
	hub     *Hub
	dumps   chan struct{} // has an element for each snapshot that is being written
	answers sync.WaitGroup
	ended   sync.Once
	hints   atomic.Pointer[func(data []byte)] // of TakeHints

	mu        sync.Mutex
	answering int // queries that are being answered
	// next is the snapshot for the queries that asked for a dump since the last
	// snapshot was taken; nil is none.
	next *snapshot
}

// FeedStats are a feed's counters since it was made.
type FeedStats = publisher.FeedStats

// Stats returns the counters.
func (f *Feed) Stats() FeedStats {
	s, _ := f.Feed.Stats()
	return s
}

// TakeHints passes each read-ahead hint for the feed's owner to take, which must not wait. take may
// be called until shortly after Close.
func (f *Feed) TakeHints(take func(data []byte)) { f.hints.Store(&take) }

// Close sends the queued events, announces that the owner is gone, and ends the feed. It is
// idempotent and waits for the feed's goroutine and for unfinished answers.
func (f *Feed) Close() {
	f.ended.Do(func() {
		f.Feed.Close()
		f.mu.Lock()   // beginAnswer has counted its answer, or finds the feed stopped
		f.mu.Unlock() //nolint:staticcheck // SA2001: the section waits for the one of beginAnswer
		f.answers.Wait()
		f.hub.forget(f)
	})
}

// beginAnswer admits a query and counts it as being answered; after a nil error endAnswer must be
// called. The error is ErrClosed or errBusy.
func (f *Feed) beginAnswer() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.Stopped():
		return ErrClosed
	case f.answering == maxAnswers:
		return errBusy
	}
	f.answering++
	f.answers.Add(1)
	return nil
}

// endAnswer ends an answer that beginAnswer counted.
func (f *Feed) endAnswer() {
	f.mu.Lock()
	f.answering--
	f.mu.Unlock()
	f.answers.Done()
}

// answer writes the answer to query q: events of the journal when it has all that q asks for, else
// a dump of the owner's state.
func (f *Feed) answer(ctx context.Context, w http.ResponseWriter, q *kvevent.QueryRequest) {
	src := f.Source()
	switch {
	case src == nil:
		f.reply(w, kvevent.QueryReply{Kind: kvevent.QueryError, Message: "not attached yet"}, nil)
		return
	case q.HasStart:
		if r, events, ok := f.AnswerRange(src, q); ok {
			f.reply(w, r, events)
			return
		}
	}
	f.dump(ctx, w, src)
}

// snapshot is a dump for all queries that asked for one before it was taken.
type snapshot struct {
	taken chan struct{} // closed when dump or err is set
	dump  publisher.Dump
	err   error

	// Under the feed's lock. users counts the queries that wait for the snapshot or write
	// it. held: the snapshot has an element in Feed.dumps.
	users int
	held  bool
}

// dump answers a query with the owner's whole state. Queries that come before the next snapshot is
// taken share that snapshot: the first of them takes it. ctx ends when the client leaves.
func (f *Feed) dump(ctx context.Context, w http.ResponseWriter, src publisher.Source) {
	s, first := f.joinSnapshot()
	defer f.leaveSnapshot(s)
	if first {
		f.take(s, src)
	}
	select {
	case <-s.taken:
	case <-ctx.Done():
		f.Count(func(s *FeedStats) { s.VoidAnswers++ })
		return
	}
	if s.err != nil {
		f.reply(w, kvevent.QueryReply{Kind: kvevent.QueryError, Message: s.err.Error()}, nil)
		return
	}
	f.Count(func(s *FeedStats) { s.Dumps++ })
	f.reply(w, kvevent.QueryReply{Kind: kvevent.QueryTreeDump, LastEventID: s.dump.Last}, s.dump.Events)
}

// joinSnapshot makes a query wait for the next snapshot: a dump that several queries share. first is
// true for the query that has to call take. leaveSnapshot must be called.
func (f *Feed) joinSnapshot() (s *snapshot, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if first = f.next == nil; first {
		f.next = &snapshot{taken: make(chan struct{})}
	}
	f.next.users++
	return f.next, first
}

// leaveSnapshot ends a query's use of s. The last one makes room for another snapshot.
func (f *Feed) leaveSnapshot(s *snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.users--; s.users == 0 && s.held {
		<-f.dumps
	}
}

// take waits until fewer than maxDumps snapshots are being written, which f.dumps counts. Then it
// sets s.dump, or s.err when the feed closes, and closes s.taken, for which the sharing queries
// wait. The last leaveSnapshot takes s from f.dumps again, if s.held.
func (f *Feed) take(s *snapshot, src publisher.Source) {
	defer close(s.taken)
	hasTurn := false
	select {
	case f.dumps <- struct{}{}:
		hasTurn = true
	case <-f.Stopping():
		s.err = ErrClosed
	}
	f.mu.Lock()
	// No further query shares s, so no query gets a dump older than itself.
	f.next, s.held = nil, hasTurn
	f.mu.Unlock()
	if hasTurn {
		f.Count(func(c *FeedStats) { c.Snapshots++ })
		s.dump = publisher.TakeDump(src)
	}
}

// reply writes an answer, r with events, in chunks. If a chunk cannot be written within
// the hub's readTimeout, or all of them within answerTimeout, or the feed closes, the answer is void and
// ends there; the client asks again.
func (f *Feed) reply(w http.ResponseWriter, r kvevent.QueryReply, events []kvevent.RouterEvent) {
	r.PublisherID = f.PublisherID()
	control := http.NewResponseController(w)
	end := time.Now().Add(answerTimeout)
	var buf []byte
	for r := range publisher.Chunks(&r, events, noByteLimit) {
		buf = kvevent.AppendQueryReply(kvevent.BeginStreamFrame(buf[:0], kvevent.StreamReply), r)
		timeout := f.hub.readTimeout
		if f.Stopped() {
			timeout = endTimeout
		}
		// A writer without deadlines keeps the server's.
		_ = control.SetWriteDeadline(time.Now().Add(min(timeout, time.Until(end))))
		if _, err := w.Write(kvevent.EndStreamFrame(buf, 0)); err != nil || f.Stopped() && !r.Final {
			f.Count(func(s *FeedStats) { s.VoidAnswers++ })
			return
		}
	}
}
