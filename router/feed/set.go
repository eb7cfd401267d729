package feed

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Set is the feeds of all publishers. Announcements add owners; silence and HealthGone
// remove them. All methods may be called from any goroutine.
type Set struct {
	directory      Models
	log            *zap.Logger
	silenceTimeout time.Duration
	keepAbsent     time.Duration
	maxFeeds       int
	loads          *loadTable

	mu      sync.Mutex
	feeds   map[uint64]*feed // by publisher id
	byOwner map[kv.Owner]*feed
	models  map[ModelKey]*modelFeeds
	// restored are feeds of a snapshot whose publishers were not heard yet, by publisher
	// id. restoredOf has the same feeds by owner.
	restored   map[uint64]*feed
	restoredOf map[kv.Owner]*feed
	gate       queryGate
	// refilling is the last feed that asked for lost pairs.
	refilling *feed
	// position is the position of the last frame, for transports that keep messages.
	// events counts the events in frames and answers.
	position uint64
	events   atomic.Uint64
	// fenced are publishers that the router follows no more, by id.
	fenced map[uint64]fence
	// refused are publishers that the router does not accept, by id.
	refused map[uint64]refusal
	// offline are the disconnected sources. snapshotSource is the source of the restored feeds.
	offline        map[int]bool
	snapshotSource int
	listening
	// withoutEvents is Options.WithoutEvents.
	withoutEvents bool
	// blockSize is Options.BlockSize.
	blockSize uint32
	// notify is Announced of Options.Joiner, nil without one. notify is called with mu
	// held.
	notify   func(source int, a *kvevent.Announcement, taken bool)
	decoder  kvevent.EnvelopeDecoder
	envelope kvevent.Envelope
	// counters are those of no live feed. Feeds that ended are included.
	counters Stats
}

// Options configure a Set.
type Options struct {
	Models Models
	Log    *zap.Logger
	// Timeout is the silence after which an owner is forgotten. KeepAbsent is how long
	// the requests and measures of a worker stay after that.
	Timeout, KeepAbsent time.Duration
	// MaxFeeds bounds the feeds, MaxQueries the queries in flight.
	MaxFeeds, MaxQueries int
	// WithoutEvents is true when the router does not use events. Workers then join and
	// leave, and pools are ignored.
	WithoutEvents bool
	// BlockSize is the only accepted block size, in tokens; 0 accepts every one.
	BlockSize uint32
	// Joiner is told which announcements were accepted; nil for none.
	Joiner source.Joiner
}

// New returns a Set without feeds.
func New(o Options) *Set {
	s := &Set{
		directory:      o.Models,
		log:            o.Log,
		silenceTimeout: o.Timeout,
		keepAbsent:     o.KeepAbsent,
		maxFeeds:       o.MaxFeeds,
		loads:          newLoadTable(),
		feeds:          make(map[uint64]*feed),
		byOwner:        make(map[kv.Owner]*feed),
		models:         make(map[ModelKey]*modelFeeds),
		restored:       make(map[uint64]*feed),
		restoredOf:     make(map[kv.Owner]*feed),
		gate:           newQueryGate(o.MaxQueries),
		fenced:         make(map[uint64]fence),
		refused:        make(map[uint64]refusal),
		offline:        make(map[int]bool),
		withoutEvents:  o.WithoutEvents,
		blockSize:      o.BlockSize,
	}
	if o.Joiner != nil {
		s.notify, s.snapshotSource = o.Joiner.Announced, o.Joiner.SnapshotSource()
	}
	return s
}

// Frame applies one message and returns the queries to send now.
func (s *Set) Frame(fr source.Frame, now time.Time) []Query {
	if fr.Kind == source.FrameLoad {
		if l, ok := s.loads.take(fr.Data, now); ok {
			s.applyLoad(&l)
		}
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.askLocked(nil, s.frameLocked(fr, now), now)
}

// frameLocked applies one message. It returns the feed of the message, or nil.
func (s *Set) frameLocked(fr source.Frame, now time.Time) *feed {
	s.noteInputLocked(now)
	if fr.Position > 0 {
		s.position = fr.Position
	}
	switch fr.Kind {
	case source.FrameAnnouncement:
		a, err := kvevent.DecodeAnnouncement(fr.Data)
		if err != nil {
			s.undecodableLocked(err)
			return nil
		}
		if s.withoutEvents && !withoutBlocks(&a) {
			return nil
		}
		if fr.Age > s.silenceTimeout && a.Health != kvevent.HealthGone {
			// An old announcement proves nothing about now. The snapshot, or a query, tells
			// what the publisher was.
			s.counters.Outdated++
			return nil
		}
		f := s.announcementLocked(&a, fr.Source, now.Add(-fr.Age))
		if s.notify != nil {
			s.notify(fr.Source, &a, f != nil)
		}
		return f
	case source.FrameEvents:
		if s.withoutEvents {
			return nil
		}
		if err := s.decoder.Decode(fr.Data, &s.envelope); err != nil {
			s.undecodableLocked(err)
			return nil
		}
		return s.eventsLocked(now)
	case source.FrameDisconnected, source.FrameConnected:
		s.connectedLocked(fr.Source, fr.Kind == source.FrameConnected, now)
	}
	return nil
}

// connectedLocked notes that a source is connected or disconnected.
func (s *Set) connectedLocked(source int, connected bool, now time.Time) {
	if connected {
		delete(s.offline, source)
	} else {
		s.offline[source] = true
	}
	for _, all := range []map[uint64]*feed{s.feeds, s.restored} {
		for _, f := range all {
			if f.source != source {
				continue
			}
			if connected && !f.replayed {
				f.seen = now // The source was away, not the publisher.
			}
			f.replayed = false
			if f.contribution.counted {
				s.countLocked(f)
			}
		}
	}
	s.refreshLocked()
}

// undecodableLocked counts a message that cannot be decoded, and logs the first one.
func (s *Set) undecodableLocked(err error) {
	if s.counters.Undecodable++; s.counters.Undecodable == 1 {
		s.log.Warn("message cannot be decoded; further ones are only counted", zap.Error(err))
	}
}

// eventsLocked takes in the events of s.envelope. It returns the feed of their publisher,
// or nil for a publisher that was not announced.
func (s *Set) eventsLocked(now time.Time) *feed {
	s.events.Add(uint64(len(s.envelope.Events)))
	f := s.feeds[s.envelope.PublisherID]
	if f == nil {
		f = s.restored[s.envelope.PublisherID]
	}
	if f == nil {
		// The announcement is still to come. Its ids show how much was missed.
		s.counters.Unannounced++
		return nil
	}
	for i := range s.envelope.Events {
		f.handleEvent(&s.envelope.Events[i], now)
	}
	f.updateLost()
	s.recountLocked(f)
	return f
}

// announcementLocked applies an announcement. It returns the feed; nil when the feed
// ended or the publisher is not followed.
func (s *Set) announcementLocked(a *kvevent.Announcement, source int, now time.Time) *feed {
	if s.fencedLocked(a, source, now) {
		return nil
	}
	f := s.feeds[a.PublisherID]
	if a.Health == kvevent.HealthGone {
		s.goneLocked(f, a, now)
		return nil
	}
	if reason := s.refusalReasonLocked(f, a); reason != "" {
		s.refuseLocked(a, now, reason)
		return nil
	}
	f, err := s.feedOfLocked(f, a, now)
	if err != nil {
		s.refuseLocked(a, now, err.Error())
		return nil
	}
	pool, card, isNew := f.announcement.Pool, f.announcement.Card, f.seen.IsZero()
	f.source = source
	if s.offline[source] {
		// An old announcement does not show that the cursor is wrong.
		f.behind = 0
	}
	f.handleAnnouncement(a, now)
	f.replayed = s.offline[source]
	if isNew || pool != a.Pool || card != a.Card {
		s.joinLocked(f)
	}
	s.refillLocked(f, now)
	s.countLocked(f)
	s.refreshLocked()
	return f
}

// goneLocked ends the feed of a publisher that says goodbye. f is nil without one.
func (s *Set) goneLocked(f *feed, a *kvevent.Announcement, now time.Time) {
	if f != nil {
		s.counters.Gone++
		s.endLocked(f, "its publisher says goodbye")
		s.fenceLocked(a, now, true)
		s.refreshLocked()
	}
	s.forgetRestoredLocked(s.restored[a.PublisherID])
}

// feedOfLocked returns the feed for an announcement: f, the publisher's restored feed, or
// a new one. It ends f when the publisher serves another model now.
func (s *Set) feedOfLocked(f *feed, a *kvevent.Announcement, now time.Time) (*feed, error) {
	if f != nil && f.model.key != keyOf(a) {
		s.endLocked(f, fmt.Sprintf("its publisher serves %s now", keyOf(a)))
		f = nil
	}
	if f == nil {
		f = s.adoptLocked(a)
	}
	if f == nil {
		return s.beginLocked(a, now)
	}
	return f, nil
}

// beginLocked makes a feed for a new publisher. It ends and fences the previous
// publisher of the owner: event ids begin anew. The error says why there is no model.
func (s *Set) beginLocked(a *kvevent.Announcement, now time.Time) (*feed, error) {
	m, err := s.openModel(a)
	if err != nil {
		return nil, err
	}
	if previous := s.byOwner[a.Owner]; previous != nil {
		if source.IsRegistered(&previous.announcement) && previous.model != m {
			s.counters.Displaced++
		}
		s.endLocked(previous, "another publisher announces it")
		s.fenceLocked(&previous.announcement, now, false)
	}
	s.forgetRestoredLocked(s.restoredOf[a.Owner])
	delete(s.refused, a.PublisherID)
	f := newFeed(a, m)
	s.feeds[a.PublisherID] = f
	s.byOwner[a.Owner] = f
	s.log.Info("owner joins", zap.Stringer("owner", a.Owner), zap.Uint64("pool", a.Pool),
		zap.String("publisher", source.PublisherName(a.PublisherID)), zap.Uint64("events", a.LastEventID), zap.String("model", a.Model), zap.Uint32("block size", a.BlockSize))
	return f, nil
}

// Tick ends the feeds that have been silent for too long and forgets old publishers.
// It returns the queries to send now.
func (s *Set) Tick(now time.Time) []Query {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteInputLocked(now)
	for _, f := range s.feeds {
		if s.silentLocked(f, now) {
			s.counters.Expired++
			s.fenceLocked(&f.announcement, f.seen, false)
			s.endLocked(f, fmt.Sprintf("nothing was heard of it for %v", s.silenceTimeout))
		}
	}
	for _, f := range s.restored {
		if s.silentLocked(f, now) {
			s.forgetRestoredLocked(f)
		}
	}
	s.gate.sweep(now)
	s.sweepFencedLocked(now)
	long := func(t time.Time) bool { return now.Sub(t) > 2*s.silenceTimeout }
	maps.DeleteFunc(s.refused, func(_ uint64, r refusal) bool { return long(r.seen) })
	s.refreshLocked()
	s.retireModelsLocked(now)
	var due []Query
	for _, f := range s.feeds {
		due = s.askLocked(due, f, now)
	}
	return due
}

// Query is a question to a publisher. Answered takes its answer.
type Query struct {
	Publisher uint64
	Request   kvevent.QueryRequest
	feed      *feed
	number    uint64
}

// maxAsked is how many of the feeds that wait for room may ask after one answer.
const maxAsked = 4

// Answered applies the answer to a query, or its error, and returns the queries to
// send now.
func (s *Set) Answered(q *Query, a *source.Answer, err error, now time.Time) []Query {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a != nil {
		s.events.Add(uint64(len(a.Events)))
	}
	if err := q.feed.handleAnswer(q.number, a, err, now); err != nil {
		s.log.Warn("feed cannot be recovered yet", zap.Stringer("owner", q.feed.owner()),
			zap.Int("failures", q.feed.failures), zap.Error(err))
	}
	s.gate.inFlight--
	s.gate.settle(ticket{q.feed, q.number})
	s.recountLocked(q.feed)
	due := s.askLocked(nil, q.feed, now)
	// Waiting answers may be smaller than the one that came.
	for range maxAsked {
		due = s.askLocked(due, s.gate.next(), now)
	}
	return due
}

// A silent publisher has ended only if the router was listening. Pauses of the process
// and of a disconnected source do not count. While the transport drops messages,
// announcements may be among them, so the timeout is longer.
const (
	// stallLimit is the pause of the router that no longer counts as silence of the
	// publishers. The router looks ten times a second.
	stallLimit = time.Second
	// lossyFactor multiplies the timeout while messages are dropped.
	lossyFactor = 4
)

// listening is how well the router has been listening.
type listening struct {
	// lastInput is when the router last took in a message or a tick.
	lastInput time.Time
	// dropped is the transport's count of dropped messages, droppedAt when it last grew.
	dropped   uint64
	droppedAt time.Time
}

// noteInputLocked notes that the router is listening. It adds a pause of the router to
// the time that publishers have.
func (s *Set) noteInputLocked(now time.Time) {
	pause := now.Sub(s.lastInput)
	before := s.lastInput
	if pause > 0 {
		s.lastInput = now
	}
	if before.IsZero() || pause < stallLimit {
		return
	}
	s.counters.Stalls++
	for _, all := range []map[uint64]*feed{s.feeds, s.restored} {
		for _, f := range all {
			f.seen = f.seen.Add(pause)
			f.rivalSeen = f.rivalSeen.Add(pause)
		}
	}
}

// NoteDrops notes how many messages the transport has dropped so far.
func (s *Set) NoteDrops(dropped uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if dropped > s.dropped {
		s.droppedAt = now
	}
	s.dropped = dropped
}

// silentLocked reports whether a feed has been silent for too long. Silence does not
// count while the source is disconnected.
func (s *Set) silentLocked(f *feed, now time.Time) bool {
	limit := s.silenceTimeout
	if now.Sub(s.droppedAt) < s.silenceTimeout {
		limit *= lossyFactor
	}
	return !s.offline[f.source] && now.Sub(f.seen) > limit
}
