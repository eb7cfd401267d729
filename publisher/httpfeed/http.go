package httpfeed

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// ContentType is that of a stream and of an answer: frames as
// kvevent.ReadStreamFrame reads them.
const ContentType = "application/x-blockyard-frames"

// maxCursors bounds the cursors that one request gives.
const maxCursors = 1024

// Register adds the handlers to mux: GET /v1/events is the stream, GET
// /v1/events/feeds lists the publishers in it, and POST /v1/events/query asks one of
// them. docs/events-http.md describes them.
func (h *Hub) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/events", h.serveEvents)
	mux.HandleFunc("GET /v1/events/feeds", h.serveFeeds)
	mux.HandleFunc("POST /v1/events/query", h.serveQuery)
}

// cursor is where a client stands in the stream of one publisher.
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

// serveEvents serves one client until it goes or the hub closes.
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
	// The server's deadline for reading a request would end the stream. A writer
	// that has none needs none lifted.
	_ = c.control.SetReadDeadline(time.Time{})
	if err := h.join(c); err != nil {
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

// catchUp writes the events after each cursor, as far as they are kept. What comes
// meanwhile waits in the client's queue and may be among them.
func (h *Hub) catchUp(w http.ResponseWriter, c *client, cursors []cursor) error {
	for _, at := range cursors {
		f := h.feed(at.publisher)
		if f == nil {
			continue
		}
		for next, last := at.last+1, f.newest(); next <= last; {
			events, ok := f.rangeFrom(next, last)
			if !ok {
				break
			}
			if err := h.write(w, c, [][]byte{f.envelope(events)}); err != nil {
				return err
			}
			next += uint64(len(events))
		}
	}
	return nil
}

// stream writes what comes into the client's queue. The error says why it ended,
// nil that the hub has closed.
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
			ended = true
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

// write writes frames and has them sent at once.
func (h *Hub) write(w http.ResponseWriter, c *client, frames [][]byte) error {
	for _, frame := range frames {
		timeout := h.patience
		select {
		case <-h.ended:
			timeout = endTimeout
		default:
		}
		_ = c.control.SetWriteDeadline(time.Now().Add(timeout)) // see hurry
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
	// The journal keeps the events KeptFrom to KeptTo; both are 0 when it has none.
	KeptFrom uint64    `json:"kept_from"`
	KeptTo   uint64    `json:"kept_to"`
	Counters FeedStats `json:"counters"`
}

func (f *Feed) describe() (feedJSON, bool) {
	f.mu.Lock()
	src := f.source
	f.mu.Unlock()
	if src == nil {
		return feedJSON{}, false
	}
	s := src.Status()
	j := feedJSON{
		PublisherID: fmt.Sprintf("%016x", f.id), Owner: f.owner.String(), Pool: f.meta.Pool,
		Namespace: f.meta.Namespace.String(), Model: f.meta.Model, BlockSize: f.meta.BlockSize,
		LastEventID: s.LastEventID, Digest: fmt.Sprintf("%016x", s.Digest), Blocks: s.Blocks, Health: s.Health,
		Counters: f.Stats(),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if first, next := f.journal.Held(); first < next {
		j.KeptFrom, j.KeptTo = first, next-1
	}
	return j, true
}

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
	_ = json.NewEncoder(w).Encode(out) // the client has gone: nobody to tell
}

// refuse answers with a status that is not 200.
func refuse(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()}) // the client has gone: nobody to tell
}
