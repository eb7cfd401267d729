package httpfeed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

const (
	// maxAnswers bounds the queries of one feed that are being answered; more are
	// refused, and their askers ask again.
	maxAnswers = 64
	// maxDumps bounds the snapshots of one feed that are kept because they are being
	// written; who asks for another one waits, together with all who do.
	maxDumps = 4
	// answerTimeout bounds the writing of one answer: after that nobody waits for it.
	answerTimeout = 30 * time.Second
	// maxQueryBody bounds a query in bytes.
	maxQueryBody = 4096
)

// errBusy says that too many queries are being answered already.
var errBusy = fmt.Errorf("%d queries are being answered already", maxAnswers)

// serveQuery answers POST /v1/events/query?publisher=P.
func (h *Hub) serveQuery(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("publisher")
	id, err := strconv.ParseUint(name, 16, 64)
	if err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("publisher %.60q: want 16 hexadecimal digits", name))
		return
	}
	f := h.feed(id)
	if f == nil {
		refuse(w, http.StatusNotFound, fmt.Errorf("publisher %016x: there is none", id))
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxQueryBody))
	if err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("body: %w", err))
		return
	}
	q, err := kvevent.DecodeQueryRequest(body)
	if err != nil {
		f.count.badQueries.Add(1)
		refuse(w, http.StatusBadRequest, err)
		return
	}
	switch err := f.beginAnswer(); {
	case errors.Is(err, errBusy):
		f.count.droppedQueries.Add(1)
		refuse(w, http.StatusServiceUnavailable, fmt.Errorf("publisher %016x: %w", id, err))
		return
	case err != nil:
		refuse(w, http.StatusNotFound, fmt.Errorf("publisher %016x: %w", id, err))
		return
	}
	defer f.endAnswer()
	w.Header().Set("Content-Type", ContentType)
	f.count.queries.Add(1)
	f.answer(r.Context(), w, &q)
}

// beginAnswer counts an answer; after a nil error endAnswer is to be called.
func (f *Feed) beginAnswer() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closing:
		return ErrClosed
	case f.answering == maxAnswers:
		return errBusy
	}
	f.answering++
	f.answers.Add(1)
	return nil
}

func (f *Feed) endAnswer() {
	f.mu.Lock()
	f.answering--
	f.mu.Unlock()
	f.answers.Done()
}

// answer writes the answer to a query.
func (f *Feed) answer(ctx context.Context, w http.ResponseWriter, q *kvevent.QueryRequest) {
	f.mu.Lock()
	src := f.source
	f.mu.Unlock()
	if src == nil {
		f.reply(w, &kvevent.QueryReply{Kind: kvevent.QueryError, Message: "not attached yet"}, nil)
		return
	}
	if !q.HasStart {
		f.dump(ctx, w, src)
		return
	}
	// Ids begin at 1; who has nothing may ask from 0.
	start := max(q.StartID, 1)
	last := src.Status().LastEventID
	switch {
	case q.HasEnd && q.EndID < q.StartID:
		f.reply(w, &kvevent.QueryReply{Kind: kvevent.QueryInvalidRange, LastEventID: last,
			Message: fmt.Sprintf("end %d lies before start %d", q.EndID, q.StartID)}, nil)
	case start > last:
		f.reply(w, &kvevent.QueryReply{Kind: kvevent.QueryTooNew, LastEventID: last,
			Message: fmt.Sprintf("event %d has not happened yet", start)}, nil)
	default:
		end := last
		if q.HasEnd {
			end = min(end, q.EndID)
		}
		events, ok := f.wholeRange(start, end)
		if !ok {
			f.dump(ctx, w, src)
			return
		}
		f.reply(w, &kvevent.QueryReply{Kind: kvevent.QueryEvents, LastEventID: end}, events)
	}
}

// wholeRange copies the events from start to end; false when the journal does not hold
// all of them.
func (f *Feed) wholeRange(start, end uint64) ([]kvevent.RouterEvent, bool) {
	var all []kvevent.RouterEvent
	for start <= end {
		events, ok := f.rangeFrom(start, end)
		if !ok {
			return nil, false
		}
		all = append(all, events...)
		start += uint64(len(events))
	}
	return all, true
}

// snapshot is a dump for all who asked for it before it was taken.
type snapshot struct {
	taken  chan struct{} // closed when what follows is set
	events []kvevent.RouterEvent
	last   uint64
	err    error

	// Under the feed's lock: users are those who wait for it or write it, and held
	// says that it has one of maxDumps places.
	users int
	held  bool
}

// dump writes everything that the owner holds. While it is written, ranges and, up
// to maxDumps, other dumps are answered.
func (f *Feed) dump(ctx context.Context, w http.ResponseWriter, src publisher.Source) {
	s, first := f.joinSnapshot()
	defer f.leaveSnapshot(s)
	if first {
		f.take(s, src)
	}
	select {
	case <-s.taken:
	case <-ctx.Done():
		f.count.voidReply.Add(1)
		return
	}
	if s.err != nil {
		f.reply(w, &kvevent.QueryReply{Kind: kvevent.QueryError, Message: s.err.Error()}, nil)
		return
	}
	f.count.dumps.Add(1)
	f.reply(w, &kvevent.QueryReply{Kind: kvevent.QueryTreeDump, LastEventID: s.last}, s.events)
}

// joinSnapshot is the next snapshot; who is the first to ask for it takes it.
func (f *Feed) joinSnapshot() (s *snapshot, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if first = f.next == nil; first {
		f.next = &snapshot{taken: make(chan struct{})}
	}
	f.next.users++
	return f.next, first
}

func (f *Feed) leaveSnapshot(s *snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.users--; s.users == 0 && s.held {
		<-f.dumps
	}
}

// take waits for a place and takes the snapshot. Who asks from then on gets another
// one: what a snapshot shows is never older than the question.
func (f *Feed) take(s *snapshot, src publisher.Source) {
	defer close(s.taken)
	held := false
	select {
	case f.dumps <- struct{}{}:
		held = true
	case <-f.stop:
		s.err = ErrClosed
	}
	f.mu.Lock()
	f.next, s.held = nil, held
	f.mu.Unlock()
	if held {
		f.count.snapshots.Add(1)
		s.events, s.last, _ = src.Snapshot()
	}
}

// reply writes an answer in chunks: r is the form of each of them. If one cannot be
// written in time, or the feed closes, the answer is void and ends there; the asker asks
// again.
func (f *Feed) reply(w http.ResponseWriter, r *kvevent.QueryReply, events []kvevent.RouterEvent) {
	r.PublisherID = f.id
	control := http.NewResponseController(w)
	end := time.Now().Add(answerTimeout)
	var buf []byte
	for !r.Final {
		n := publisher.MessageLen(events, noByteLimit)
		r.Events, events = events[:n], events[n:]
		r.Final = len(events) == 0
		buf = kvevent.AppendQueryReply(kvevent.BeginStreamFrame(buf[:0], kvevent.StreamReply), r)
		timeout := writeTimeout
		if f.stopping() {
			timeout = endTimeout
		}
		_ = control.SetWriteDeadline(time.Now().Add(min(timeout, time.Until(end)))) // see client.hurry
		if _, err := w.Write(kvevent.EndStreamFrame(buf, 0)); err != nil || f.stopping() && !r.Final {
			f.count.voidReply.Add(1)
			return
		}
		r.Chunk++
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
