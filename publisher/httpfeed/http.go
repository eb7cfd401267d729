package httpfeed

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

// ContentType is the content type of streams and answers: frames as
// kvevent.ReadStreamFrame reads them.
const ContentType = "application/x-blockyard-frames"

const (
	// maxCursors bounds the cursors of one request.
	maxCursors = 1024
	// maxQueryBody bounds a query in bytes.
	maxQueryBody = 4096
)

// Register adds the handlers to mux. GET /v1/events is the stream, GET /v1/events/feeds
// lists its publishers, POST /v1/events/query asks one of them, and POST /v1/events/read-ahead
// gives a pool's publisher a hint.
func (h *Hub) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/events", h.serveEvents)
	mux.HandleFunc("GET /v1/events/feeds", h.serveFeeds)
	mux.HandleFunc("POST /v1/events/query", h.serveQuery)
	mux.HandleFunc("POST /v1/events/read-ahead", h.serveReadAhead)
}

// cursor is the last event that a client has of one publisher.
type cursor struct {
	publisher, last uint64
}

// parseCursors reads the values of the parameter cursor, each P:N with P a publisher
// id in hexadecimal and N the id of the last event that the client has.
func parseCursors(values []string) ([]cursor, error) {
	if len(values) > maxCursors {
		return nil, fmt.Errorf("cursor: %d of them, want at most %d", len(values), maxCursors)
	}
	var all []cursor
	for _, v := range values {
		publisher, last, _ := strings.Cut(v, ":")
		p, err := strconv.ParseUint(publisher, 16, 64)
		n, err2 := strconv.ParseUint(last, 10, 64)
		if err != nil || err2 != nil {
			return nil, fmt.Errorf("cursor %.60q: want a publisher id of 16 hexadecimal digits, a colon and an event id", v)
		}
		all = append(all, cursor{p, n})
	}
	return all, nil
}

// serveEvents serves GET /v1/events to one client until the client leaves or the hub closes. It
// writes a heartbeat, the events after the client's cursors that the journals still hold, and
// then the live frames. A cursor is a publisher and the last event that the client has. With
// events=none the client gets announcements only.
func (h *Hub) serveEvents(w http.ResponseWriter, r *http.Request) {
	cursors, err := parseCursors(r.URL.Query()["cursor"])
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	c := newClient(h.opt.ClientBytes, w)
	switch events := r.URL.Query().Get("events"); events {
	case "", "all":
	case "none":
		c.noEvents, cursors = true, nil
	default:
		refuse(w, http.StatusBadRequest, fmt.Errorf("events %.60q: want all or none", events))
		return
	}
	// The server's deadline for reading a request would end the stream. A writer without
	// deadlines returns an error that does not matter.
	_ = c.control.SetReadDeadline(time.Time{})
	if err := h.join(c); err != nil { // from here on the client's queue gets live frames
		refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	defer h.leave(c)
	h.log.Info("a client follows the events", zap.String("client", r.RemoteAddr))
	w.Header().Set("Content-Type", ContentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if err = h.write(w, c, [][]byte{c.heartbeat()}); err == nil {
		err = h.catchUp(w, c, cursors)
	}
	if err == nil {
		err = h.stream(w, r, c)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		h.count.cut.Add(1)
	}
	h.log.Info("a client has gone", zap.String("client", r.RemoteAddr), zap.Uint64("dropped", c.dropped.Load()), zap.NamedError("cause", err))
}

// catchUp writes the events after each of the client's cursors that the publisher's journal still
// has. A cursor is a publisher and the last event that the client has. Events that are published
// during catchUp wait in the client's queue; some may be written twice.
func (h *Hub) catchUp(w http.ResponseWriter, c *client, cursors []cursor) error {
	for _, at := range cursors {
		f := h.feed(at.publisher)
		if f == nil {
			continue
		}
		_, next := f.Held()
		events, _ := f.Range(at.last+1, next-1) // none if some are missing: then the client queries
		for len(events) > 0 {
			n := publisher.MessageLen(events, noByteLimit)
			e := f.Envelope(events[:n])
			if err := h.write(w, c, [][]byte{eventFrame(&e)}); err != nil {
				return err
			}
			events = events[n:]
		}
	}
	return nil
}

// stream writes the frames of the client's queue as they come, and a heartbeat every
// AnnounceEvery. It returns nil when the hub has closed, after the frames that were queued; else
// the reason why the stream ended.
func (h *Hub) stream(w http.ResponseWriter, r *http.Request, c *client) error {
	beat := time.NewTicker(h.opt.AnnounceEvery)
	defer beat.Stop()
	var frames [][]byte
	for ended := false; !ended; {
		frames = frames[:0]
		select {
		case <-r.Context().Done():
			return r.Context().Err()
		case <-h.ended:
			ended = true // after one more look at the queue
		case <-c.wake:
		case <-beat.C:
			frames = append(frames, c.heartbeat())
		}
		frames = c.take(frames)
		if err := h.write(w, c, frames); err != nil {
			return err
		}
		clear(frames)
	}
	return nil
}

// write writes frames to a client and flushes them. A frame that the client does not read in time
// is an error, which ends the client's stream.
func (h *Hub) write(w http.ResponseWriter, c *client, frames [][]byte) error {
	for _, frame := range frames {
		timeout := h.readTimeout
		select {
		case <-h.ended:
			timeout = endTimeout
		default:
		}
		_ = c.control.SetWriteDeadline(time.Now().Add(timeout)) // a writer without deadlines keeps the server's
		if _, err := w.Write(frame); err != nil {
			return err
		}
		h.count.frames.Add(1)
		h.count.bytes.Add(uint64(len(frame)))
	}
	return c.control.Flush()
}

// feedJSON is one publisher in GET /v1/events/feeds.
type feedJSON struct {
	PublisherID string         `json:"publisher_id"`
	Owner       string         `json:"owner"`
	Pool        uint64         `json:"pool"`
	Namespace   string         `json:"namespace"`
	Model       string         `json:"model"`
	BlockSize   uint32         `json:"block_size"`
	LastEventID uint64         `json:"last_event_id"`
	Digest      string         `json:"digest"`
	Blocks      uint64         `json:"blocks"`
	Health      kvevent.Health `json:"health"`
	// The journal has the events KeptFrom to KeptTo; both are 0 when it has none.
	KeptFrom uint64    `json:"kept_from"`
	KeptTo   uint64    `json:"kept_to"`
	Counters FeedStats `json:"counters"`
}

// describe returns the feed's description for GET of the feeds: its owner, status, counters and the
// events that its journal holds. ok is false for a feed without a source.
func (f *Feed) describe() (j feedJSON, ok bool) {
	src := f.Source()
	if src == nil {
		return feedJSON{}, false
	}
	s, meta := src.Status(), f.Meta()
	j = feedJSON{
		PublisherID: fmt.Sprintf("%016x", f.PublisherID()), Owner: f.Owner().String(), Pool: meta.Pool,
		Namespace: meta.Namespace.String(), Model: meta.Model, BlockSize: meta.BlockSize,
		LastEventID: s.LastEventID, Digest: fmt.Sprintf("%016x", s.Digest), Blocks: s.Blocks, Health: s.Health,
		Counters: f.Stats(),
	}
	if first, next := f.Held(); first < next {
		j.KeptFrom, j.KeptTo = first, next-1
	}
	return j, true
}

// serveFeeds answers with the hub's counters and a description of each feed, as JSON.
func (h *Hub) serveFeeds(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	feeds := h.feedsLocked()
	h.mu.Unlock()
	out := struct {
		Stats
		Feeds []feedJSON `json:"feeds"`
	}{h.Stats(), []feedJSON{}}
	for _, f := range feeds {
		if j, ok := f.describe(); ok {
			out.Feeds = append(out.Feeds, j)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // an error means that the client has left
}

// serveQuery answers POST /v1/events/query?publisher=P, with P a publisher id in hexadecimal. The
// body is a query in the format of kvevent, for lost events or for the whole state; the answer is
// a stream of frames. A feed answers a bounded number of queries at a time.
func (h *Hub) serveQuery(w http.ResponseWriter, r *http.Request) {
	f, id, body := h.readRequest(w, r, maxQueryBody)
	if f == nil {
		return
	}
	q, err := kvevent.DecodeQueryRequest(body)
	if err != nil {
		f.Count(func(s *FeedStats) { s.BadQueries++ })
		refuse(w, http.StatusBadRequest, err)
		return
	}
	switch err := f.beginAnswer(); {
	case errors.Is(err, errBusy):
		f.Count(func(s *FeedStats) { s.DroppedQueries++ })
		refuse(w, http.StatusServiceUnavailable, fmt.Errorf("publisher %016x: %w", id, err))
		return
	case err != nil:
		refuse(w, http.StatusNotFound, fmt.Errorf("publisher %016x: %w", id, err))
		return
	}
	defer f.endAnswer()
	w.Header().Set("Content-Type", ContentType)
	f.Count(func(s *FeedStats) { s.Queries++ })
	f.answer(r.Context(), w, &q)
}

// serveReadAhead answers POST /v1/events/read-ahead?publisher=P. The body is a kvevent.ReadAhead.
// The status 202 says that the hint was passed on, and 404 that the publisher takes none.
func (h *Hub) serveReadAhead(w http.ResponseWriter, r *http.Request) {
	f, id, body := h.readRequest(w, r, kvevent.MaxReadAheadBytes)
	if f == nil {
		return
	}
	take := f.hints.Load()
	if take == nil || f.Stopped() {
		refuse(w, http.StatusNotFound, fmt.Errorf("publisher %016x: takes no read-ahead hints", id))
		return
	}
	(*take)(body)
	w.WriteHeader(http.StatusAccepted)
}

// readRequest returns the feed that the parameter publisher names, its id, and the body of at most
// limit bytes. It returns nil after it has refused the request.
func (h *Hub) readRequest(w http.ResponseWriter, r *http.Request, limit int64) (f *Feed, id uint64, body []byte) {
	name := r.URL.Query().Get("publisher")
	id, err := strconv.ParseUint(name, 16, 64)
	if err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("publisher %.60q: want 16 hexadecimal digits", name))
		return nil, 0, nil
	}
	if f = h.feed(id); f == nil {
		refuse(w, http.StatusNotFound, fmt.Errorf("publisher %016x: there is none", id))
		return nil, 0, nil
	}
	if body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, limit)); err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("body: %w", err))
		return nil, 0, nil
	}
	return f, id, body
}

// refuse answers with an error status.
func refuse(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()}) // an error means that the client has left
}
