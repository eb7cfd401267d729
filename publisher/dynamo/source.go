package dynamo

import (
	"fmt"
	"math"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"github.com/blockyard-ai/blockyard/internal/backoff"
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
	// inboxEvents bounds the events of the stream that wait, ringEvents the events of
	// the wire that a recovery query can get one by one.
	inboxEvents = 4096
	ringEvents  = 1024
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

	wake publisher.Alarm // there is something to send
	stop chan struct{}
	done chan struct{}
	end  sync.Once

	in    *publisher.Inbox
	dumps singleflight.Group

	// recoverable does not change after NewSource.
	recoverable bool

	// turn is held by who numbers and sends; what follows belongs to its holder.
	turn     sync.Mutex
	ring     *publisher.Journal[kvevent.RouterEvent] // the last events of the wire
	sequence uint64
	batch    []kvevent.RouterEvent // taken from the inbox
	pieces   []kvevent.RouterEvent // numbered, of one message
	buf      []byte
	// broken says that events were numbered which the connection did not get, or
	// that everything must be said again for another reason.
	broken  bool
	away    bool      // no server was connected when we looked last
	saidAll time.Time // when a dump was too large and everything was published instead
	// pace slows what is said again; nil while nothing is.
	pace *publisher.Pace
	// An empty event is due at probeAt. A live-only source says everything again at
	// refreshAt. A repair is not tried before retryAt.
	probes, refreshes, retries  backoff.Pauses
	probeAt, refreshAt, retryAt time.Time
}

// PublisherID is the id that the source has on the wire, from 1 to 2^53-1.
func (s *Source) PublisherID() uint64 { return s.id }

// Recoverable reports whether the routers can ask this source for what they lost.
func (s *Source) Recoverable() bool { return s.recoverable }

// Publish takes events of the stream, in order and with contiguous ids, and copies
// them. It never blocks and may be called under the stream's lock.
func (s *Source) Publish(events []kvevent.RouterEvent) {
	s.in.Add(events)
}

// HealthChanged takes note of the stream's health, which Dynamo has no word for: a
// stream that lost something for good clears itself.
func (s *Source) HealthChanged(h kvevent.Health) {
	s.count.degraded.Store(h == kvevent.HealthDegraded)
}

// StateJoined takes note that the stream's state has become larger without events:
// everything is said again. It never blocks.
func (s *Source) StateJoined() {
	s.in.MarkDirty()
}

// Close ends the source: the routers forget what it held when its record is gone.
// It is idempotent and waits for the source's goroutine.
func (s *Source) Close() {
	s.end.Do(func() {
		s.plane.forget(s)
		close(s.stop)
		<-s.done
		s.in.Close()
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
	s.beginRefreshes(now)
	s.retries = backoff.Doubling(firstRetry, lastRetry)
	s.beginProbes(now)
	if !s.recoverable {
		s.broken = true
		return
	}
	s.broken = !s.in.Resync(s.src.Status().LastEventID)
}

// beginProbes makes the next empty event due firstProbe from now.
func (s *Source) beginProbes(now time.Time) {
	s.probes = backoff.Doubling(firstProbe, lastProbe)
	s.probeAt = now.Add(s.probes.NextBackOff())
}

// beginRefreshes makes the next refresh due firstRefresh from now.
func (s *Source) beginRefreshes(now time.Time) {
	s.refreshes = backoff.Doubling(firstRefresh, lastRefresh)
	s.refreshAt = now.Add(s.refreshes.NextBackOff())
}

// takeTurn sends what waits, repairs what is broken and does what is due.
func (s *Source) takeTurn() {
	s.turn.Lock()
	defer s.turn.Unlock()
	now := time.Now()
	s.broken = s.in.Begin() || s.broken
	if !s.plane.conn.Connected() {
		s.away = true
		return
	}
	if s.away {
		s.away = false
		s.back()
	}
	if s.broken || s.in.Lost() {
		s.repair(now)
		return
	}
	s.forwardEvents(math.MaxUint64)
	switch {
	case s.broken:
	case !s.recoverable && !now.Before(s.refreshAt):
		s.restate(false)
		s.refreshes.MaxInterval = s.longestRefresh()
		s.refreshAt = now.Add(s.refreshes.NextBackOff())
	case !now.Before(s.probeAt):
		pauses := s.probes
		s.probe()
		s.probes = pauses // probe is an event, and begins them anew
		s.probeAt = now.Add(s.probes.NextBackOff())
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
	if now.Before(s.retryAt) {
		return
	}
	s.broken = false
	s.restate(true)
	if s.broken || s.in.Lost() {
		s.broken = true
		s.retryAt = now.Add(s.retries.NextBackOff())
		return
	}
	s.retries.Reset()
	s.beginRefreshes(now)
}

// longestRefresh returns the longest pause between two refreshes.
func (s *Source) longestRefresh() time.Duration {
	blocks := s.src.Status().Blocks
	return max(lastRefresh, time.Duration(blocks/refreshRate)*time.Second)
}

// restate says everything that the stream holds. Behind a cleared event, it stands
// for the events before it that wait; else they are sent before it.
func (s *Source) restate(clearFirst bool) {
	events, last, _ := s.src.Snapshot()
	if clearFirst {
		if !s.in.Resync(last) {
			return
		}
		s.count.repairs.Add(1)
		s.emit([]kvevent.RouterEvent{{Kind: kvevent.Cleared}})
	} else {
		s.forwardEvents(last)
		s.count.refreshes.Add(1)
	}
	s.count.restated.Add(uint64(len(events)))
	pace := publisher.NewPace(time.Now())
	s.pace = &pace
	s.emit(events)
	s.pace = nil
}

// probe sends an event that changes nothing but the last id.
func (s *Source) probe() {
	s.count.probes.Add(1)
	s.emit([]kvevent.RouterEvent{{Kind: kvevent.Stored}})
}

// forwardEvents sends the waiting events with stream ids up to last.
func (s *Source) forwardEvents(last uint64) {
	s.batch = s.in.Take(s.batch[:0], last)
	s.emit(s.batch)
	clear(s.batch)
}

// dump is everything the stream holds and the id of the last event of the wire
// that it includes, exactly.
func (s *Source) dump() (events []kvevent.RouterEvent, last uint64) {
	s.turn.Lock()
	defer s.turn.Unlock()
	events, upTo, _ := s.src.Snapshot()
	if s.in.Lost() {
		// The dropped events have no ids: without a hole the other routers would not
		// miss them.
		s.in.Resync(upTo)
		s.ring.Skip()
		s.broken = true
	} else {
		s.forwardEvents(upTo)
	}
	for i := range events {
		s.dress(&events[i])
		events[i].ID = uint64(i) + 1
	}
	return events, s.nextID() - 1
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
		s.in.MarkDirty()
	}
}

// nextID returns the id of the next event on the wire, from 1.
func (s *Source) nextID() uint64 {
	_, next := s.ring.Held()
	return next
}

// checkOwner refuses a stream of somebody else.
func checkOwner(src publisher.Source, w kv.Worker) error {
	if src.Owner() != kv.WorkerOwner(w) {
		return fmt.Errorf("dynamo source of worker %s: the stream is of %s", w, src.Owner())
	}
	return nil
}
