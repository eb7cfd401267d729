package dynamo

import (
	"fmt"
	"math"
	"slices"
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
	// tickEvery is the time between two checks of a source's connection and timers.
	tickEvery = 250 * time.Millisecond
	// A probe is an empty event: it shows routers when the last event was lost. Probes
	// follow the last event after firstProbe, twice as long, and so on up to lastProbe,
	// because a probe may be lost too.
	firstProbe = time.Second
	lastProbe  = time.Minute
	// A live-only source sends its state again after firstRefresh, twice as long, and so on up
	// to lastRefresh. The last pause is longer for a source with more blocks than
	// refreshRate times its seconds.
	firstRefresh = time.Second
	lastRefresh  = time.Minute
	refreshRate  = 10_000
	// A repair that failed is tried again after firstRetry, twice as long, and so on up to
	// lastRetry.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 8 * time.Second
	// inboxEvents bounds the events of the stream in the inbox, sentEvents the sent events
	// in the journal for recovery queries.
	inboxEvents = 4096
	sentEvents  = 1024
)

// Source publishes one worker rank on a Plane. It is a sink of the rank's merged stream,
// and numbers its own events from 1.
type Source struct {
	plane     *Plane
	stream    publisher.Source
	worker    kv.Worker
	id        uint64
	record    string
	log       *zap.Logger
	count     sourceCounters
	queryPath string // names the source in recovery queries

	wake publisher.Alarm // there is something to send
	stop chan struct{}
	done chan struct{}
	end  sync.Once

	inbox *publisher.Inbox
	dumps singleflight.Group

	// recoverable does not change after NewSource.
	recoverable bool

	// sendMu is held while events are numbered and sent. It guards the fields below.
	sendMu   sync.Mutex
	journal  *publisher.Journal[kvevent.RouterEvent] // the last sent events, with their ids on the wire
	sequence uint64
	batch    []kvevent.RouterEvent // taken from the inbox
	outgoing []kvevent.RouterEvent // numbered; the events of the next message
	buf      []byte
	// mustSendState: numbered events were not sent, or the state must be sent again for another
	// reason.
	mustSendState bool
	disconnected  bool      // no server was connected at the last sendDue
	sentInstead   time.Time // of the last state sent instead of a dump that was too large
	// pace slows the sending of the state; nil at other times.
	pace *publisher.Pace
	// A probe is due at probeAt. A live-only source sends its state again at refreshAt. A
	// repair is not tried before retryAt.
	probes, refreshes, retries  backoff.Pauses
	probeAt, refreshAt, retryAt time.Time
}

// Publish takes copies of the stream's events, in order and with contiguous ids. It never
// blocks and may be called under the stream's lock.
func (s *Source) Publish(events []kvevent.RouterEvent) { s.inbox.Add(events) }

// HealthChanged records the stream's health for Stats. Dynamo's protocol has no health: a
// stream that lost events for good clears itself.
func (s *Source) HealthChanged(h kvevent.Health) {
	s.count.degraded.Store(h == kvevent.HealthDegraded)
}

// StateJoined says that the stream's state grew without events: the source sends its state again.
// It never blocks.
func (s *Source) StateJoined() { s.inbox.MarkDirty() }

// Close ends the source. Routers forget its blocks when its record is gone. Close is
// idempotent and waits for the source's goroutine.
func (s *Source) Close() {
	s.end.Do(func() {
		s.plane.forget(s)
		close(s.stop)
		<-s.done
		s.inbox.Close()
	})
	<-s.done
}

// run is the source's goroutine: until Close it calls sendDue at each waiting event and each tick.
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
		s.sendDue()
	}
}

// begin makes the stream's present state that of event 0: later events are numbered from 1. A
// recoverable source gives the state to routers that query it. A live-only source, which routers
// cannot query, sends it in its first sendDue.
func (s *Source) begin() {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	now := time.Now()
	s.beginRefreshes(now)
	s.retries = backoff.Doubling(firstRetry, lastRetry)
	s.beginProbes(now)
	if !s.recoverable {
		s.mustSendState = true
		return
	}
	s.mustSendState = !s.inbox.Resync(s.stream.Status().LastEventID) // true if events after the state were dropped
}

// beginProbes makes the next probe due firstProbe from now.
func (s *Source) beginProbes(now time.Time) {
	s.probes = backoff.Doubling(firstProbe, lastProbe)
	s.probeAt = now.Add(s.probes.NextBackOff())
}

// beginRefreshes makes the next refresh due firstRefresh from now.
func (s *Source) beginRefreshes(now time.Time) {
	s.refreshes = backoff.Doubling(firstRefresh, lastRefresh)
	s.refreshAt = now.Add(s.refreshes.NextBackOff())
}

// sendDue sends the waiting events. Then it sends a probe, an empty event whose id shows routers a
// loss, or for a live-only source a refresh, the whole state again, if one is due. When events were
// lost, it sends the whole state instead. Without a connection it only notes that. run calls
// it at each event and tick.
func (s *Source) sendDue() {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	now := time.Now()
	s.mustSendState = s.inbox.Begin() || s.mustSendState // Begin: the state has grown without events
	if !s.plane.conn.Connected() {
		s.disconnected = true
		return
	}
	if s.disconnected {
		s.disconnected = false
		s.reconnected()
	}
	if s.mustSendState || s.inbox.Lost() {
		s.repair(now)
		return
	}
	s.forwardEvents(math.MaxUint64)
	switch {
	case s.mustSendState: // the connection refused an event; the next call sends the state
	case !s.recoverable && !now.Before(s.refreshAt): // routers cannot query: they get the state regularly
		s.sendState(false)
		s.refreshes.MaxInterval = s.longestRefresh()
		s.refreshAt = now.Add(s.refreshes.NextBackOff())
	case !now.Before(s.probeAt):
		pauses := s.probes
		s.sendProbe()
		s.probes = pauses // sending the probe, which is an event, has restarted the pauses
		s.probeAt = now.Add(s.probes.NextBackOff())
	}
}

// reconnected handles a new connection: messages in flight may be lost. After a probe a router
// can ask for them. A live-only source sends its state again, because its routers would drop the
// rank's blocks.
func (s *Source) reconnected() {
	switch {
	case s.mustSendState: // that repairs the loss too
	case s.recoverable:
		s.sendProbe()
	default:
		s.mustSendState = true
	}
}

// repair makes up for events that routers did not get: it sends a cleared event and then the whole
// state. A repair that fails is tried again after a growing pause: before retryAt repair does
// nothing. Callers hold sendMu.
func (s *Source) repair(now time.Time) {
	if now.Before(s.retryAt) {
		return
	}
	s.mustSendState = false
	s.sendState(true)
	if s.mustSendState || s.inbox.Lost() { // a message was refused, or the inbox lost events again
		s.mustSendState = true
		s.retryAt = now.Add(s.retries.NextBackOff())
		return
	}
	s.retries.Reset()
	s.beginRefreshes(now) // routers have the state now: the next refresh is not due soon
}

// longestRefresh returns the longest pause between two refreshes.
func (s *Source) longestRefresh() time.Duration {
	blocks := s.stream.Status().Blocks
	return max(lastRefresh, time.Duration(blocks/refreshRate)*time.Second)
}

// sendState sends the stream's whole state. With clearFirst, for a repair, it sends a cleared event
// first and drops the waiting events that the state includes. Otherwise, for the refresh of a
// live-only source, it sends the waiting events first.
func (s *Source) sendState(clearFirst bool) {
	events, last, _ := s.stream.Snapshot()
	if clearFirst {
		if !s.inbox.Resync(last) { // events after the snapshot are lost: the caller tries again
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
	s.pace = &pace // flush pauses between the messages of the state
	s.emit(events)
	s.pace = nil
}

// sendProbe sends an empty event.
func (s *Source) sendProbe() {
	s.count.probes.Add(1)
	s.emit([]kvevent.RouterEvent{{Kind: kvevent.Stored}})
}

// forwardEvents sends the waiting events with stream ids up to last.
func (s *Source) forwardEvents(last uint64) {
	s.batch = s.inbox.Take(s.batch[:0], last)
	s.emit(s.batch)
	clear(s.batch)
}

// dump returns the stream's whole state for a recovery query, and the id of the last sent event
// that it includes: the router continues behind that event. Waiting events that the state
// includes are sent first, so that they have ids.
func (s *Source) dump() (events []kvevent.RouterEvent, last uint64) {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	events, upTo, _ := s.stream.Snapshot()
	if s.inbox.Lost() {
		// The dropped events have no ids. The unused id (Skip) tells routers without this dump
		// that events are missing.
		s.inbox.Resync(upTo)
		s.journal.Skip()
		s.mustSendState = true
	} else {
		s.forwardEvents(upTo)
	}
	events = slices.DeleteFunc(events, func(e kvevent.RouterEvent) bool { return e.Group != 0 }) // see emit
	for i := range events {
		s.toWire(&events[i])
		events[i].ID = uint64(i) + 1
	}
	return events, s.nextID() - 1
}

// toWire gives an event of the stream the fields that it has on the wire.
func (s *Source) toWire(e *kvevent.RouterEvent) {
	e.Owner = kv.WorkerOwner(s.worker)
	e.StartPosition, e.HasStart = 0, false
}

// recordDeleted is called after the source's deleted record was restored. Routers have dropped
// the rank. They query a recoverable source themselves; a live-only source sends its state again.
func (s *Source) recordDeleted() {
	if !s.recoverable {
		s.inbox.MarkDirty()
	}
}

// nextID returns the id of the next event on the wire, from 1.
func (s *Source) nextID() uint64 {
	_, next := s.journal.Held()
	return next
}

// checkOwner refuses a stream whose owner is not w.
func checkOwner(src publisher.Source, w kv.Worker) error {
	if src.Owner() != kv.WorkerOwner(w) {
		return fmt.Errorf("dynamo source of worker %s: the stream is of %s", w, src.Owner())
	}
	return nil
}
