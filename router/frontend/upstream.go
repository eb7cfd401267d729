package frontend

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// Headers between the door and workers, and between clients and the door.
const (
	// rankHeader names the data-parallel rank of vLLM that takes a request.
	rankHeader = "X-Data-Parallel-Rank"
	// requestIDHeader names a request; workers use it in their logs.
	requestIDHeader = "X-Request-Id"
)

const (
	// dialTimeout bounds the time to connect to a worker.
	dialTimeout = 2 * time.Second
	// idleTimeout closes idle connections to workers. uvicorn closes them after five
	// seconds; a request that meets the close would fail.
	idleTimeout = 4 * time.Second
	// readBuffer is enough for an event with a few tokens. Longer reads pass the buffer by.
	readBuffer = 2 << 10
	// maxIdle bounds the idle connections to one worker.
	maxIdle = 512
)

// keepAlives find a worker whose node has gone, which sends no reset, within 25 seconds.
var keepAlives = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// newTransport returns the transport to workers. It never compresses, because answers are
// read on the way.
func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: dialTimeout, KeepAliveConfig: keepAlives}).DialContext,
		DisableCompression:     true,
		IdleConnTimeout:        idleTimeout,
		MaxIdleConns:           0,
		MaxIdleConnsPerHost:    maxIdle,
		ReadBufferSize:         readBuffer,
		MaxResponseHeaderBytes: 64 << 10,
		TLSHandshakeTimeout:    dialTimeout,
	}
}

// send sends the request to the worker of a booking, with a body. Headers of the answer may come long
// before its data.
func (d *Door) send(ctx context.Context, q *request, b *booking, body []byte) (*http.Response, error) {
	target := b.worker.URL + q.http.URL.EscapedPath()
	if q.http.URL.RawQuery != "" {
		target += "?" + q.http.URL.RawQuery
	}
	req, err := http.NewRequestWithContext(ctx, q.http.Method, target, nil)
	if err != nil {
		return nil, fmt.Errorf("request to worker %s: %w", b.worker.URL, err)
	}
	// The transport keeps req until the end of the answer. It rewinds the body only until the
	// answer begins.
	defer attach(req, body)()
	copyHeaders(req.Header, q.http.Header)
	for _, own := range []string{"Authorization", "X-Api-Key", rankHeader} {
		req.Header.Del(own)
	}
	req.Header.Del("Accept-Encoding")
	req.Header.Set(requestIDHeader, q.id)
	d.options.Tracer.Propagate(ctx, req.Header)
	if b.worker.Ranks > 1 {
		// vLLM counts the ranks among the server's own.
		req.Header.Set(rankHeader, strconv.FormatUint(uint64(uint32(b.match.Worker.Rank)-b.worker.FirstRank), 10))
	}
	b.worker.Authorize(req.Header)
	if q.through != nil {
		return d.hand(ctx, q, b, req)
	}
	return d.transport.RoundTrip(req)
}

// upload is the body of a request. It forgets its bytes when it is closed: the transport closes it
// when the bytes are sent, and keeps it.
type upload struct {
	mu   sync.Mutex // the transport may close while it reads
	rest bytes.Reader
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.rest.Read(p)
}

// Close implements io.Closer.
func (u *upload) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rest.Reset(nil)
	return nil
}

// attach sets the body of a request. The caller calls release after the round trip. From then on
// the request holds no bytes that have been sent.
func attach(req *http.Request, body []byte) (release func()) {
	if len(body) == 0 {
		return func() {}
	}
	begin := func() (io.ReadCloser, error) {
		u := new(upload)
		u.rest.Reset(body)
		return u, nil
	}
	req.ContentLength, req.GetBody = int64(len(body)), begin
	req.Body, _ = begin()
	return func() { body = nil }
}

// shrink frees what no further attempt needs: bodies and tokens. The caller has sent the first
// event of a stream to the client, which may go on for minutes.
func (q *request) shrink() {
	q.client, q.body, q.edits, q.handOver = nil, nil, nil, nil
	q.parsed, q.tokens, q.prompt.Tokens, q.prompt.Objects = &openai.Request{Route: q.route}, nil, nil, nil
	if q.charge != nil {
		q.charge.Done()
	}
}

// hopByHop are the headers that belong to one connection (RFC 9110, 7.6.1).
var hopByHop = []string{
	"Connection", "Content-Length", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// copyHeaders copies all headers but those of one connection.
func copyHeaders(to, from http.Header) {
	for name, values := range from {
		to[name] = values
	}
	for _, listed := range from.Values("Connection") {
		for name := range strings.SplitSeq(listed, ",") {
			to.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hopByHop {
		to.Del(name)
	}
}

// readBounded reads at most most bytes. whole is false when there are more.
func readBounded(r io.Reader, most int64) (b []byte, whole bool, err error) {
	b, err = io.ReadAll(io.LimitReader(r, most+1))
	if int64(len(b)) > most {
		return b, false, err
	}
	return b, err == nil, err
}

// Through has a gateway forward a request that the Door decides. The Door prepares, books and
// follows the request as its own, and sends nothing to workers.
type Through struct {
	// Send hands the decision to the gateway and returns the worker's answer. The Door reads
	// the body of the answer and closes it. Send is called again after a *MovedError.
	Send func(ctx context.Context, d *Decision) (*http.Response, error)
	// Only has the workers that the gateway offers; nil is every worker.
	Only map[kv.WorkerID]struct{}
}

// Decision is what a gateway needs to forward a request.
type Decision struct {
	// Worker is the booked worker. Fallbacks take the same headers and body, for a gateway
	// that retries.
	Worker    *workers.Worker
	Fallbacks []*workers.Worker
	// Path, Header and Body are those of the request to the worker.
	Path   string
	Header http.Header
	Body   []byte
	// Edited is true when Body is not the client's.
	Edited bool
	// Answer has the headers that the Door adds to the answer.
	Answer http.Header
	// AddedUsage is true when the worker's stream will have an event with the usage that the
	// client did not ask for. The Door leaves it out of what it writes.
	AddedUsage bool
}

// MovedError is the error of Through.Send when another worker than the booked one served.
type MovedError struct{ To kv.WorkerID }

// Error implements error.
func (e *MovedError) Error() string {
	return fmt.Sprintf("the gateway sent the request to worker %d", e.To)
}

type throughKey struct{}

// WithThrough returns a context for requests to Handler that a gateway forwards.
func WithThrough(ctx context.Context, t *Through) context.Context {
	return context.WithValue(ctx, throughKey{}, t)
}

// throughOf returns the gateway of a request, nil when the Door forwards the request itself.
func throughOf(ctx context.Context) *Through {
	t, _ := ctx.Value(throughKey{}).(*Through)
	return t
}

const (
	// maxFallbacks bounds the fallbacks of a decision.
	maxFallbacks = 3
	// moveTimeout bounds how long an answer waits until its worker is booked.
	moveTimeout = 100 * time.Millisecond
)

// hand gives a request to its gateway.
func (d *Door) hand(ctx context.Context, q *request, b *booking, req *http.Request) (*http.Response, error) {
	h := make(http.Header)
	q.describeTo(h, b)
	return q.through.Send(ctx, &Decision{
		Worker: b.worker, Fallbacks: d.fallbacks(q, b), Path: req.URL.RequestURI(), Header: req.Header, Body: q.body,
		Edited: !bytes.Equal(q.body, q.client),
		Answer: h, AddedUsage: q.addedUsage,
	})
}

// fallbacks returns other workers that can take the booked worker's request as it is, which
// leaves out those that need a rank or another key.
func (d *Door) fallbacks(q *request, b *booking) (found []*workers.Worker) {
	if q.pinned != nil || b.model == nil || b.worker.Ranks > 1 {
		return nil
	}
	allowed, oneModel := d.allowed(q, nil), len(d.options.Workers.Models()) <= 1
	name := cmp.Or(q.served.LoRA, q.served.Model)
	takes := func(w *workers.Worker) bool {
		if allowed != nil {
			_, ok := allowed[w.ID]
			return ok
		}
		return w.State == workers.Ready && (oneModel || slices.ContainsFunc(w.Models, func(m workers.Model) bool { return m.Name == name }))
	}
	all := d.options.Workers.Workers()
	booked := slices.IndexFunc(all, func(w *workers.Worker) bool { return w.ID == b.worker.ID })
	for i := 1; i < len(all) && len(found) < maxFallbacks; i++ {
		// Fallbacks of different workers differ, so that they share the load of a dead one.
		w := all[(booked+i)%len(all)]
		if w.ID != b.worker.ID && takes(w) && w.Ranks <= 1 && w.URL != "" && keyOf(w) == keyOf(b.worker) {
			found = append(found, w)
		}
	}
	return found
}

// keyOf returns the header with a worker's key.
func keyOf(w *workers.Worker) string {
	h := make(http.Header)
	w.Authorize(h)
	return h.Get("Authorization")
}

// bookFor books a worker for an attempt. A gateway that has moved a request has its answer
// already, which does not wait in the router's queue.
func (d *Door) bookFor(ctx context.Context, q *request, failed []kv.WorkerID, attempt int) (*booking, error) {
	if q.through != nil && attempt > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, moveTimeout)
		defer cancel()
	}
	b, err := d.book(ctx, q, failed)
	var unknown *noEndpointError
	if !errors.As(err, &unknown) || q.pinned != nil {
		return b, err
	}
	// The directory learns of a new worker up to a second after the router.
	if b, other := d.book(ctx, q, append(slices.Clone(failed), unknown.worker.ID)); other == nil || ctx.Err() != nil {
		return b, other
	}
	return nil, err
}

// moved reports whether the gateway sent the request elsewhere, and pins q to that worker.
func (d *Door) moved(q *request, result *outcome) bool {
	var moved *MovedError
	if !errors.As(result.err, &moved) {
		return false
	}
	pin := &kv.Worker{ID: moved.To}
	if w, ok := d.options.Workers.Worker(moved.To); ok {
		pin.Rank = kv.DPRank(w.FirstRank)
	}
	q.pinned, q.through.Only = pin, nil
	return true
}

// describeTo sets the headers of an answer that describe the decision.
func (q *request) describeTo(h http.Header, b *booking) {
	h.Set(WorkerHeader, b.match.Worker.String())
	h.Set(PredictedHeader, strconv.Itoa(q.record.predicted))
	h.Set(QualityHeader, string(b.match.Quality))
	if b.match.Mode != "" {
		h.Set(ScoreHeader, b.match.Mode)
	}
	h.Set(TokensHeader, describe(&q.prompt))
	h.Set(requestIDHeader, q.id)
	if q.record.prefill != "" {
		h.Set(PrefillHeader, q.record.prefill)
	}
}
