package dynamo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Bounds of a Source.
const (
	messageQueue  = 2048
	maxRecoveries = 16
	tickEvery     = 50 * time.Millisecond
)

// Source is a source.Transport that follows the workers of one endpoint of Dynamo. Make one
// with Open.
type Source struct {
	options     Options
	log         *zap.Logger
	plane       Plane
	frames      chan source.Frame
	messages    chan []byte
	loads       chan []byte
	answers     chan result
	ctx         context.Context // ends with Close
	cancel      context.CancelFunc
	unsubscribe func() // of the subscriptions
	dropped     func() uint64
	goroutines  sync.WaitGroup

	mu               sync.Mutex
	budget           budget
	ranks            map[kv.Worker]*rank
	ranksByPublisher map[uint64]*rank // by publisher id for the router
	ranksBySource    map[uint64]*rank // by Dynamo's publisher id
	unclaimed        unclaimed
	decoder          kvevent.EnvelopeDecoder
	envelope         kvevent.Envelope
	queriesInFlight  int
	connections      uint64
	// reportedLost is true after FrameDisconnected. connectionsAtLoss is the number of
	// connections at that time.
	reportedLost      bool
	connectionsAtLoss uint64
	badRecords        []string
	counters          Counters
}

// result is the answer to a query, or its error.
type result struct {
	source *eventSource
	rank   *rank
	number uint64
	answer *kvevent.QueryReply
	err    error
}

var _ source.Transport = (*Source)(nil)

// Open subscribes to the endpoint's events and begins to watch the directory. The directory
// need not exist yet. The error is a bad option or a failed subscription. The caller closes
// the Source, and then the Plane.
func Open(o Options, p Plane) (*Source, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	loads := p // brings load reports, also with NoEvents; p brings events
	if o.NoEvents {
		p = noPlane{}
	}
	if loads == nil { // allowed with NoEvents
		loads = p
	}
	t := &Source{
		options: o, log: o.Log, plane: p,
		frames:   make(chan source.Frame),
		messages: make(chan []byte, messageQueue), loads: make(chan []byte, loadQueue),
		answers: make(chan result),
		budget:  budget{free: o.MaxBlocks},
		ranks:   make(map[kv.Worker]*rank), ranksByPublisher: make(map[uint64]*rank), ranksBySource: make(map[uint64]*rank),
		connections: p.Connections(),
	}
	stopLoads, droppedLoads, err := loads.Subscribe(o.Endpoint.Subject(kvevent.LoadTopic), t.loads)
	if err != nil {
		return nil, fmt.Errorf("dynamo endpoint %s: %w", o.Endpoint, err)
	}
	stop, dropped, err := p.Subscribe(o.Endpoint.Subject(topic), t.messages)
	if err != nil {
		stopLoads()
		return nil, fmt.Errorf("dynamo endpoint %s: %w", o.Endpoint, err)
	}
	t.unsubscribe = func() { stop(); stopLoads() }
	t.dropped = func() uint64 { return dropped() + droppedLoads() }
	t.ctx, t.cancel = context.WithCancel(context.Background())
	views := make(chan view)
	t.goroutines.Go(func() { t.watch(views) })
	t.goroutines.Go(func() { t.run(views) })
	return t, nil
}

// Close ends the subscription, waits for every goroutine and logs the counters. It may be
// called twice.
func (t *Source) Close() error {
	closed := t.ctx.Err() != nil
	t.cancel()
	t.unsubscribe()
	t.goroutines.Wait()
	if !closed {
		t.log.Info("dynamo workers are no longer followed", zap.Any("counters", t.Counters()))
	}
	return nil
}

// Frames implements source.Transport.
func (t *Source) Frames() <-chan source.Frame { return t.frames }

// Stats implements source.Transport.
func (t *Source) Stats() source.Stats {
	return source.Stats{Connected: t.plane.Connected(), Dropped: t.dropped()}
}

// errNoPublisher is the error of a query to a rank that has left.
var errNoPublisher = errors.New("no such publisher")

// Query implements source.Transport. Whatever the query, the answer is a dump of the rank's blocks.
func (t *Source) Query(_ context.Context, publisher uint64, _ kvevent.QueryRequest) (*source.Answer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.ranksByPublisher[publisher]
	if r == nil {
		return nil, fmt.Errorf("query publisher %016x: %w", publisher, errNoPublisher)
	}
	return r.answer(), nil
}

// run is the goroutine that changes the ranks until Close. It handles messages, loads, views of the
// directory and answers, one at a time, and delivers the frames that they lead to.
func (t *Source) run(views <-chan view) {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		var out []source.Frame
		select {
		case <-t.ctx.Done():
			return
		case m := <-t.messages:
			out = t.handleMessage(m, time.Now())
		case m := <-t.loads:
			out = t.handleLoad(m, time.Now())
		case v := <-views:
			out = t.handleView(&v, time.Now())
		case r := <-t.answers:
			out = t.handleAnswer(&r, time.Now())
		case now := <-ticker.C:
			out = t.tick(now)
		}
		for _, f := range out {
			select {
			case t.frames <- f:
			case <-t.ctx.Done():
				return
			}
		}
	}
}

// handleMessage applies one message with events of a Dynamo worker and returns the frames for the
// router. A message of an unknown publisher waits in t.unclaimed for the publisher's discovery
// record. A message that cannot be decoded is counted.
func (t *Source) handleMessage(data []byte, now time.Time) []source.Frame {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.decoder.Decode(data, &t.envelope); err != nil {
		if t.counters.Undecodable++; t.counters.Undecodable == 1 {
			t.log.Warn("message cannot be decoded; further ones are only counted", zap.Error(err))
		}
		return nil
	}
	r := t.ranksBySource[t.envelope.PublisherID]
	if r == nil {
		t.unclaimed.add(t.envelope.PublisherID, data, now)
		return nil
	}
	return t.applyEnvelopeLocked(nil, r, now)
}

// applyEnvelopeLocked applies the decoded envelope t.envelope to its rank r, and appends the frames
// for the router to out.
func (t *Source) applyEnvelopeLocked(out []source.Frame, r *rank, now time.Time) []source.Frame {
	out = r.publish(out, r.source.applyMessage(r.changes[:0], t.envelope.Events, now))
	t.queryLocked(r, now)
	return r.announce(out, now)
}

// handleView adds and removes ranks and their event sources, so that they equal those of v, the
// last view of the discovery directory: model cards, and origins (the publishers of the ranks'
// events). It returns the frames for the router.
func (t *Source) handleView(v *view, now time.Time) []source.Frame {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Equal(t.badRecords, v.bad) {
		t.badRecords = v.bad
		t.counters.BadRecords += uint64(len(v.bad))
		if len(v.bad) > 0 {
			t.log.Warn("discovery records are left out", zap.Strings("records", v.bad))
		}
	}
	var out []source.Frame
	known := make(map[kv.Worker]card)
	for _, id := range slices.Sorted(maps.Keys(v.cards)) {
		c := v.cards[id]
		for n := range c.ranks {
			known[kv.Worker{ID: c.worker, Rank: c.firstRank + kv.DPRank(n)}] = c
		}
	}
	for w, r := range t.ranks {
		if c, ok := known[w]; !ok || c.model != r.model || c.blockSize != r.blockSize {
			out = t.leaveLocked(out, r)
		}
	}
	for _, w := range slices.SortedFunc(maps.Keys(known), kv.Worker.Compare) {
		if t.ranks[w] == nil && len(t.ranks) < t.options.MaxRanks { // others wait for a free place
			t.joinLocked(w, known[w])
		}
		if r := t.ranks[w]; r != nil {
			r.card = known[w]
			origins := v.origins[w]
			if t.options.NoEvents {
				origins = nil
			}
			out = t.bindLocked(out, r, origins, now)
		}
	}
	return out
}

// joinLocked adds a rank of a worker.
func (t *Source) joinLocked(w kv.Worker, c card) {
	r := &rank{worker: w, model: c.model, blockSize: c.blockSize, publisher: kv.RandomID(),
		table: newTable(&t.budget, &t.counters)}
	t.ranks[w], t.ranksByPublisher[r.publisher] = r, r
	t.log.Info("dynamo worker joins", zap.Stringer("worker", w), zap.String("model", c.model), zap.Uint32("block_size", c.blockSize))
}

// leaveLocked removes a rank and appends its goodbye, a frame for the router, to out.
func (t *Source) leaveLocked(out []source.Frame, r *rank) []source.Frame {
	if r.source != nil {
		delete(t.ranksBySource, r.source.origin.publisher)
	}
	r.table.release()
	delete(t.ranks, r.worker)
	delete(t.ranksByPublisher, r.publisher)
	t.log.Info("dynamo worker leaves", zap.Stringer("worker", r.worker))
	return append(out, r.announcement(kvevent.HealthGone))
}

// bindLocked gives rank r its event source: the publisher of the rank's events. origins are the
// sources that the directory lists for the rank. With none or several of them the rank has no
// source and no blocks. It appends frames for the router to out. The caller holds t.mu.
func (t *Source) bindLocked(out []source.Frame, r *rank, origins []origin, now time.Time) []source.Frame {
	old := r.source
	var o *origin
	if len(origins) == 1 {
		o = &origins[0]
	} else if len(origins) > 1 && old != nil {
		t.counters.Ambiguous++
		t.log.Warn("dynamo worker has several event sources; its blocks are forgotten until one is left",
			zap.Stringer("worker", r.worker), zap.Int("sources", len(origins)))
	}
	out = r.attach(out, o, now)
	if r.source != old {
		if old != nil {
			delete(t.ranksBySource, old.origin.publisher)
		}
		if o != nil {
			t.ranksBySource[o.publisher] = r
			// Events may have come before the poll that found the source.
			for _, data := range t.unclaimed.claim(o.publisher) {
				if t.decoder.Decode(data, &t.envelope) == nil {
					out = t.applyEnvelopeLocked(out, r, now)
				}
			}
			t.log.Info("dynamo worker has an event source", zap.Stringer("worker", r.worker), zap.String("publisher", fmt.Sprintf("%x", o.publisher)),
				zap.Bool("recoverable", r.source.recoverable()))
		}
	}
	t.queryLocked(r, now)
	return r.announce(out, now)
}

// tick does what is due after some time: queries to event sources, announcements and load reports
// of the ranks, and the state of the connection. It returns the frames for the router. After a
// reconnection every event source may have lost events, and queries for them.
func (t *Source) tick(now time.Time) []source.Frame {
	t.mu.Lock()
	defer t.mu.Unlock()
	connections := t.plane.Connections()
	reconnected := connections != t.connections && t.connections > 0 // 0: the first connection
	t.connections = connections
	var out []source.Frame
	for _, r := range t.ranks {
		if r.source != nil && reconnected {
			r.source.suspectLoss(now)
		}
		t.queryLocked(r, now)
		out = r.announce(out, now)
		if r.usedKnown && !now.Before(r.reportAt) {
			out = r.report(out, now)
		}
	}
	return t.connectionLocked(out)
}

// connectionLocked reports changes of the connection to the router. Call it after the ranks
// have announced possible losses, so that FrameConnected comes last.
func (t *Source) connectionLocked(out []source.Frame) []source.Frame {
	connected := t.plane.Connected()
	switch {
	case !t.reportedLost && !connected:
		t.reportedLost, t.connectionsAtLoss = true, t.connections
		return append(out, source.Frame{Kind: source.FrameDisconnected})
	case t.reportedLost && connected && t.connections != t.connectionsAtLoss: // tick has seen the new one
		t.reportedLost = false
		return append(out, source.Frame{Kind: source.FrameConnected})
	}
	return out
}

// queryLocked sends the next query of a rank's event source for lost events, if one is due and
// fewer than maxRecoveries are in flight. A goroutine passes the answer to run, over t.answers.
func (t *Source) queryLocked(r *rank, now time.Time) {
	if r.source == nil || t.queriesInFlight == maxRecoveries {
		return
	}
	q, number, due := r.source.nextQuery(now)
	if !due {
		return
	}
	t.queriesInFlight++
	s := r.source
	t.goroutines.Go(func() {
		a, err := queryTarget(t.ctx, s.origin.target, &q)
		select {
		case t.answers <- result{s, r, number, a, err}:
		case <-t.ctx.Done():
		}
	})
}

// handleAnswer passes the answer to a query for lost events to the event source that asked, unless
// the rank or the source has left since. It returns the frames for the router.
func (t *Source) handleAnswer(res *result, now time.Time) []source.Frame {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queriesInFlight--
	r := res.rank
	if t.ranks[r.worker] != r || r.source != res.source {
		return nil
	}
	changes, err := r.source.handleAnswer(r.changes[:0], res.number, res.answer, res.err, now)
	if err != nil {
		t.log.Warn("dynamo worker cannot be recovered yet", zap.Stringer("worker", r.worker), zap.Error(err))
	}
	out := r.publish(nil, changes)
	t.queryLocked(r, now)
	return r.announce(out, now)
}
