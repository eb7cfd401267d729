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
	// queryWaiting bounds the queries of one feed that wait; more are refused, and
	// their askers ask again.
	queryWaiting = 64
	// maxQueryBody bounds a query in bytes.
	maxQueryBody = 4096
)

// errBusy says that too many queries wait already.
var errBusy = fmt.Errorf("%d queries wait already", queryWaiting)

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
	switch err := f.ask(r.Context()); {
	case errors.Is(err, errBusy):
		f.count.droppedQueries.Add(1)
		refuse(w, http.StatusServiceUnavailable, fmt.Errorf("publisher %016x: %w", id, err))
		return
	case err != nil:
		refuse(w, http.StatusNotFound, fmt.Errorf("publisher %016x: %w", id, err))
		return
	}
	defer func() { <-f.asking }()
	w.Header().Set("Content-Type", ContentType)
	f.count.queries.Add(1)
	f.answer(w, &q)
}

// ask waits for its turn; after a nil error the turn is to be given back. There is
// never more than one dump of a feed at a time.
func (f *Feed) ask(ctx context.Context) error {
	if f.waiting.Add(1) > queryWaiting {
		f.waiting.Add(-1)
		return errBusy
	}
	defer f.waiting.Add(-1)
	select {
	case f.asking <- struct{}{}:
		return nil
	case <-f.stop:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answer writes the answer to a query.
func (f *Feed) answer(w http.ResponseWriter, q *kvevent.QueryRequest) {
	f.mu.Lock()
	src := f.source
	f.mu.Unlock()
	if src == nil {
		f.reply(w, &kvevent.QueryReply{Kind: kvevent.QueryError, Message: "not attached yet"}, nil)
		return
	}
	if !q.HasStart {
		f.dump(w, src)
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
			f.dump(w, src)
			return
		}
		f.reply(w, &kvevent.QueryReply{Kind: kvevent.QueryEvents, LastEventID: end}, events)
	}
}

// wholeRange copies the events from start to end; false when the ring does not hold
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

func (f *Feed) dump(w http.ResponseWriter, src publisher.Source) {
	f.count.dumps.Add(1)
	events, last, _ := src.Snapshot()
	f.reply(w, &kvevent.QueryReply{Kind: kvevent.QueryTreeDump, LastEventID: last}, events)
}

// reply writes an answer in chunks: r is the form of each of them. If one cannot be
// written, or the feed closes, the answer is void and ends there; the asker asks
// again.
func (f *Feed) reply(w http.ResponseWriter, r *kvevent.QueryReply, events []kvevent.RouterEvent) {
	r.PublisherID = f.id
	control := http.NewResponseController(w)
	var buf []byte
	for !r.Final {
		n := messageLen(events)
		r.Events, events = events[:n], events[n:]
		r.Final = len(events) == 0
		buf = kvevent.AppendQueryReply(kvevent.BeginStreamFrame(buf[:0], kvevent.StreamReply), r)
		timeout := writeTimeout
		if f.stopping() {
			timeout = endTimeout
		}
		_ = control.SetWriteDeadline(time.Now().Add(timeout)) // see client.hurry
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
