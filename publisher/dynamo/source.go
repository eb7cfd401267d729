package dynamo

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

const (
	// tickEvery is how often a source looks at its connection and its clocks.
	tickEvery = 250 * time.Millisecond
	// An empty event is sent firstProbe after the last event, by which the loss of that
	// one is noticed, then after twice as long, and so on up to lastProbe: it may be
	// lost as well.
	firstProbe = time.Second
	lastProbe  = time.Minute
	// A live-only source says everything again after firstRefresh, twice as long
	// after that, and so on up to lastRefresh; later when it holds more than
	// refreshRate blocks for each second of that.
	firstRefresh = time.Second
	lastRefresh  = time.Minute
	refreshRate  = 10_000
	// A repair that failed is tried again after firstRetry, twice as long after that,
	// and so on up to lastRetry.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 8 * time.Second
)

// Source is one worker rank on a Plane. It is the sink of the stream that it was
// made for.
type Source struct {
	plane  *Plane
	src    publisher.Source
	worker kv.Worker
	id     uint64
	record string
	log    *zap.Logger
	count  sourceCounters
	path   string // of its recovery queries

	wake chan struct{} // room for one: there are events to send
	stop chan struct{}
	done chan struct{}
	end  sync.Once

	in    inbox
	again atomic.Bool // everything must be said again
	dumps singleflight.Group

	// recoverable does not change after NewSource.
	recoverable bool

	// turn is held by who numbers and sends; what follows belongs to its holder.
	turn     sync.Mutex
	ring     *ring
	sequence uint64
	batch    []kvevent.RouterEvent // taken from the inbox
	pieces   []kvevent.RouterEvent // numbered, of one message
	buf      []byte
	// broken says that events were numbered which the connection did not get, or
	// that everything must be said again for another reason.
	broken  bool
	away    bool      // no server was connected when we looked last
	saidAll time.Time // when a dump was too large and everything was published instead
	// restating paces what is said again; zero while that is not the case.
	restating pace
	probing   backoff
	refresh   backoff
	retry     backoff
}

// backoff says when something is due, with growing pauses.
type backoff struct {
	at    time.Time
	pause time.Duration
}

func (b *backoff) due(now time.Time) bool { return !now.Before(b.at) }

// reset makes the next pause the shortest, beginning now.
func (b *backoff) reset(now time.Time, first time.Duration) {
	b.pause = first
	b.at = now.Add(first)
}

// grow begins a pause twice as long as the last one, but not longer than limit.
func (b *backoff) grow(now time.Time, limit time.Duration) {
	b.pause = min(2*b.pause, limit)
	b.at = now.Add(b.pause)
}

// PublisherID is the id that the source has on the wire, from 1 to 2^53-1.
func (s *Source) PublisherID() uint64 { return s.id }

// Recoverable reports whether the routers can ask this source for what they lost.
func (s *Source) Recoverable() bool { return s.recoverable }

// Publish takes events of the stream, in order and with contiguous ids, and copies
// them. It never blocks and may be called under the stream's lock.
func (s *Source) Publish(events []kvevent.RouterEvent) {
	s.in.add(events)
	signal(s.wake)
}

// HealthChanged takes note of the stream's health, which Dynamo has no word for: a
// stream that lost something for good clears itself.
func (s *Source) HealthChanged(h kvevent.Health) {
	s.count.degraded.Store(h == kvevent.HealthDegraded)
}

// StateJoined takes note that the stream's state has become larger without events:
// everything is said again. It never blocks.
func (s *Source) StateJoined() {
	s.again.Store(true)
	signal(s.wake)
}

// Close ends the source: the routers forget what it held when its record is gone.
// It is idempotent and waits for the source's goroutine.
func (s *Source) Close() {
	s.end.Do(func() {
		s.plane.forget(s)
		close(s.stop)
		<-s.done
		s.in.close()
	})
	<-s.done
}

// run is the sending goroutine.
func (s *Source) run() {
	defer close(s.done)
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-s.wake:
		case <-tick.C:
		}
		s.takeTurn()
	}
}

// begin makes the stream's state at this moment what event 0 stands for. A router
// that can ask gets it by asking, the others are told.
func (s *Source) begin() {
	s.turn.Lock()
	defer s.turn.Unlock()
	now := time.Now()
	s.refresh.reset(now, firstRefresh)
	s.retry.reset(now, 0)
	s.probing.reset(now, firstProbe)
	if !s.recoverable {
		s.broken = true
		return
	}
	s.broken = !s.in.forward(s.src.Status().LastEventID)
}

// takeTurn sends what waits, repairs what is broken and does what is due.
func (s *Source) takeTurn() {
	s.turn.Lock()
	defer s.turn.Unlock()
	now := time.Now()
	if !s.plane.conn.Connected() {
		s.away = true
		return
	}
	if s.away {
		s.away = false
		s.back()
	}
	s.broken = s.again.Swap(false) || s.broken
	if s.broken || s.in.hasLost() {
		s.repair(now)
		return
	}
	s.forwardEvents(math.MaxUint64)
	switch {
	case s.broken:
	case !s.recoverable && s.refresh.due(now):
		s.restate(false)
		s.refresh.grow(now, s.refreshLimit())
	case s.probing.due(now):
		pause := s.probing.pause
		s.probe()
		s.probing.pause = pause
		s.probing.grow(now, lastProbe)
	}
}

// back is called when the connection is there again. What was on its way may be
// lost, which only a router that can ask finds out without harm.
func (s *Source) back() {
	switch {
	case s.broken:
	case s.recoverable:
		s.probe()
	default:
		s.broken = true
	}
}

// repair says everything again, behind a cleared event.
func (s *Source) repair(now time.Time) {
	if !s.retry.due(now) {
		return
	}
	s.broken = false
	s.restate(true)
	if s.broken || s.in.hasLost() {
		s.broken = true
		s.retry.pause = max(s.retry.pause, firstRetry/2)
		s.retry.grow(now, lastRetry)
		return
	}
	s.retry.reset(now, 0)
	s.refresh.reset(now, firstRefresh)
}

// refreshLimit is the longest pause between two refreshes.
func (s *Source) refreshLimit() time.Duration {
	blocks := s.src.Status().Blocks
	return max(lastRefresh, time.Duration(blocks/refreshRate)*time.Second)
}

// restate says everything that the stream holds. Behind a cleared event, it stands
// for the events before it that wait; else they are sent before it.
func (s *Source) restate(clearFirst bool) {
	events, last, _ := s.src.Snapshot()
	if clearFirst {
		if !s.in.forward(last) {
			return
		}
		s.count.repairs.Add(1)
		s.emit([]kvevent.RouterEvent{{Kind: kvevent.Cleared}})
	} else {
		s.forwardEvents(last)
		s.count.refreshes.Add(1)
	}
	s.count.restated.Add(uint64(len(events)))
	s.restating = pace{began: time.Now()}
	s.emit(events)
	s.restating = pace{}
}

// probe sends an event that changes nothing but the last id.
func (s *Source) probe() {
	s.count.probes.Add(1)
	s.emit([]kvevent.RouterEvent{{Kind: kvevent.Stored}})
}

// forwardEvents sends the waiting events with stream ids up to last.
func (s *Source) forwardEvents(last uint64) {
	s.batch = s.in.take(s.batch[:0], last)
	s.emit(s.batch)
	clear(s.batch)
}

// dump is everything the stream holds and the id of the last event of the wire
// that it includes, exactly.
func (s *Source) dump() (events []kvevent.RouterEvent, last uint64) {
	s.turn.Lock()
	defer s.turn.Unlock()
	events, upTo, _ := s.src.Snapshot()
	if s.in.hasLost() {
		// What was dropped has no id, so that the other routers would not miss it.
		s.in.forward(upTo)
		s.ring.skip()
		s.broken = true
	} else {
		s.forwardEvents(upTo)
	}
	for i := range events {
		s.dress(&events[i])
		events[i].ID = uint64(i) + 1
	}
	return events, s.ring.last()
}

// dress makes an event of the stream one of the wire.
func (s *Source) dress(e *kvevent.RouterEvent) {
	e.Owner = kv.WorkerOwner(s.worker)
	e.StartPosition, e.HasStart = 0, false
}

// recordDeleted is called when the source's record was gone for a while: routers
// have forgotten the rank. Those that can ask will.
func (s *Source) recordDeleted() {
	if !s.recoverable {
		s.again.Store(true)
		signal(s.wake)
	}
}

// signal fills a channel that has room for one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// checkOwner refuses a stream of somebody else.
func checkOwner(src publisher.Source, w kv.Worker) error {
	if src.Owner() != kv.WorkerOwner(w) {
		return fmt.Errorf("dynamo source of worker %s: the stream is of %s", w, src.Owner())
	}
	return nil
}
