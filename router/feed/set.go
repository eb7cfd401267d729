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
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Set has the feeds of all publishers. Announcements add owners. Silence and HealthGone
// remove owners. All methods may be called from any goroutine.
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
	// restored are the feeds of a snapshot whose publishers have not announced themselves
	// yet, by publisher id. restoredByOwner has the same feeds by owner.
	restored        map[uint64]*feed
	restoredByOwner map[kv.Owner]*feed
	gate            queryGate
	// refillingFeed is the last feed that queried for lost pairs.
	refillingFeed *feed
	// streamPosition is the position of the last frame, 0 without a stream. handledEvents
	// counts the events in frames and answers.
	streamPosition uint64
	handledEvents  atomic.Uint64
	// fenced and refused are the fenced and the refused publishers, by id.
	fenced  map[uint64]fence
	refused map[uint64]refusal
	// disconnected are the sources without a connection now. snapshotSource is the source of the restored
	// feeds.
	disconnected   map[int]bool
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
	status   kvevent.AgentStatus
	// strangers are the agents with publishers that the Set does not know.
	strangers map[uint64]stranger
	// counters are the counters of the Set and of feeds that have ended.
	counters Stats
}

// Options configure a Set.
type Options struct {
	Models Models
	Log    *zap.Logger
	// Timeout is the silence after which an owner is forgotten. KeepAbsent is how long the
	// requests and measures of the worker then stay.
	Timeout, KeepAbsent time.Duration
	// MaxFeeds bounds the feeds. MaxQueries bounds the queries in flight.
	MaxFeeds, MaxQueries int
	// WithoutEvents is true when the router does not use events. Workers then only join and
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
		directory:       o.Models,
		log:             o.Log,
		silenceTimeout:  o.Timeout,
		keepAbsent:      o.KeepAbsent,
		maxFeeds:        o.MaxFeeds,
		loads:           newLoadTable(),
		feeds:           make(map[uint64]*feed),
		byOwner:         make(map[kv.Owner]*feed),
		models:          make(map[ModelKey]*modelFeeds),
		restored:        make(map[uint64]*feed),
		restoredByOwner: make(map[kv.Owner]*feed),
		gate:            newQueryGate(o.MaxQueries),
		fenced:          make(map[uint64]fence),
		refused:         make(map[uint64]refusal),
		disconnected:    make(map[int]bool),
		strangers:       make(map[uint64]stranger),
		withoutEvents:   o.WithoutEvents,
		blockSize:       o.BlockSize,
	}
	if o.Joiner != nil {
		s.notify, s.snapshotSource = o.Joiner.Announced, o.Joiner.SnapshotSource()
	}
	return s
}

// Frame applies one message and returns the queries to send now.
func (s *Set) Frame(fr source.Frame, now time.Time) []Query {
	if fr.Kind == source.FrameLoad {
		if l, ok := s.loads.add(fr.Data, now); ok {
			s.applyLoad(&l)
		}
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordInputLocked(now)
	if fr.Position > 0 { // of a stream that a restarted router reads on from a snapshot
		s.streamPosition = fr.Position
	}
	if fr.Kind == source.FrameAnnouncement {
		if is, err := kvevent.DecodeAgentStatus(fr.Data, &s.status); is {
			return s.handleStatusLocked(&fr, err, now)
		}
	}
	return s.askLocked(nil, s.handleFrameLocked(fr, now), now)
}

// handleFrameLocked applies one message of a source: an announcement, events, or a change of its
// connection. It returns the publisher's feed, which may have a query to send now, or nil.
func (s *Set) handleFrameLocked(fr source.Frame, now time.Time) *feed {
	switch fr.Kind {
	case source.FrameAnnouncement:
		a, err := kvevent.DecodeAnnouncement(fr.Data)
		if err != nil {
			s.countUndecodableLocked(err)
			return nil
		}
		if s.withoutEvents && !stripBlocks(&a) {
			return nil // the announcement of a pool has only fields about blocks
		}
		if fr.Age > s.silenceTimeout && a.Health != kvevent.HealthGone {
			// An old announcement does not show that the publisher is alive.
			s.counters.Outdated++
			return nil
		}
		f := s.handleAnnouncementLocked(&a, fr.Source, now.Add(-fr.Age))
		if s.notify != nil {
			s.notify(fr.Source, &a, f != nil)
		}
		return f
	case source.FrameEvents:
		if s.withoutEvents {
			return nil
		}
		if err := s.decoder.Decode(fr.Data, &s.envelope); err != nil {
			s.countUndecodableLocked(err)
			return nil
		}
		return s.handleEventsLocked(now)
	case source.FrameDisconnected, source.FrameConnected:
		s.setConnectedLocked(fr.Source, fr.Kind == source.FrameConnected, now)
	}
	return nil
}

// setConnectedLocked records whether a source is connected. Feeds of a disconnected source are not
// exact. A reconnection restarts the timeout of the source's publishers.
func (s *Set) setConnectedLocked(source int, connected bool, now time.Time) {
	if connected {
		delete(s.disconnected, source)
	} else {
		s.disconnected[source] = true
	}
	for _, all := range []map[uint64]*feed{s.feeds, s.restored} {
		for _, f := range all {
			if f.source != source {
				continue
			}
			if connected && !f.announcedOffline {
				f.announcedAt = now // the source was disconnected, not the publisher silent
			}
			f.announcedOffline = false
			if f.contribution.counted { // restored feeds are not
				s.countLocked(f)
			}
		}
	}
	s.refreshLocked()
}

// countUndecodableLocked counts a message that cannot be decoded, and logs the first one.
func (s *Set) countUndecodableLocked(err error) {
	if s.counters.Undecodable++; s.counters.Undecodable == 1 {
		s.log.Warn("message cannot be decoded; further ones are only counted", zap.Error(err))
	}
}

// handleEventsLocked applies the events of s.envelope. It returns the publisher's feed, or
// nil for a publisher that was not announced.
func (s *Set) handleEventsLocked(now time.Time) *feed {
	s.handledEvents.Add(uint64(len(s.envelope.Events)))
	f := s.feeds[s.envelope.PublisherID]
	if f == nil {
		f = s.restored[s.envelope.PublisherID]
	}
	if f == nil {
		// The coming announcement will show which events were missed.
		s.counters.Unannounced++
		return nil
	}
	f.moment = miss.Moment{At: now, Late: f.delay.Of(now, s.envelope.PublishedAt)}
	f.handleEvents(s.envelope.Events, now)
	f.updateLost()
	s.recountLocked(f)
	return f
}

// handleAnnouncementLocked applies an announcement of a source, sent at now. It returns the
// publisher's feed, or nil when the feed has ended or the publisher is not followed.
func (s *Set) handleAnnouncementLocked(a *kvevent.Announcement, source int, now time.Time) *feed {
	if s.handleFencedLocked(a, source, now) {
		return nil
	}
	f := s.feeds[a.PublisherID]
	if a.Health == kvevent.HealthGone {
		s.handleGoodbyeLocked(f, a, now)
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
	// f still has the previous announcement here.
	pool, card, isNew := f.announcement.Pool, f.announcement.Card, f.announcedAt.IsZero()
	f.source = source
	if s.disconnected[source] {
		// The announcement is replayed from a stream. That its last event id is below the cursor,
		// the id of the last applied event, does not show that the cursor is wrong.
		f.behindInRow = 0
	}
	f.handleAnnouncement(a, now)
	f.announcedOffline = s.disconnected[source]
	if isNew || pool != a.Pool || card != a.Card { // the worker joins, or its engine changes
		s.joinLocked(f)
	}
	s.refillLocked(f, now) // for blocks that the index had no room for
	s.countLocked(f)       // in the sums of the model
	s.refreshLocked()
	return f
}

// handleGoodbyeLocked ends the feed f of a publisher that says goodbye. f may be nil.
func (s *Set) handleGoodbyeLocked(f *feed, a *kvevent.Announcement, now time.Time) {
	if f != nil {
		s.counters.Gone++
		s.endLocked(f, "the publisher said goodbye")
		s.fenceLocked(a, now, true) // an older announcement that comes late must not bring it back
		s.refreshLocked()
	}
	s.forgetRestoredLocked(s.restored[a.PublisherID])
}

// feedOfLocked returns the feed for an announcement: the publisher's feed f, its feed of the
// snapshot, or a new one. It ends f when the publisher has changed its model.
func (s *Set) feedOfLocked(f *feed, a *kvevent.Announcement, now time.Time) (*feed, error) {
	if f != nil && f.model.key != keyOf(a) {
		s.endLocked(f, fmt.Sprintf("the publisher serves %s now", keyOf(a)))
		f = nil
	}
	if f == nil {
		f = s.resumeRestoredLocked(a)
	}
	if f == nil {
		return s.beginLocked(a, now)
	}
	return f, nil
}

// beginLocked adds a feed for a new publisher. It fences the previous publisher of the owner
// and ends its feed, because event ids begin again. The error says why there is no model.
func (s *Set) beginLocked(a *kvevent.Announcement, now time.Time) (*feed, error) {
	m, err := s.openModel(a)
	if err != nil {
		return nil, err
	}
	if previous := s.byOwner[a.Owner]; previous != nil {
		if source.IsRegistered(&previous.announcement) && previous.model != m {
			s.counters.Displaced++ // the registration named another model than the worker serves
		}
		s.endLocked(previous, "another publisher announces the owner")
		s.fenceLocked(&previous.announcement, now, false)
	}
	s.forgetRestoredLocked(s.restoredByOwner[a.Owner])
	delete(s.refused, a.PublisherID)
	f := newFeed(a, m)
	s.feeds[a.PublisherID] = f
	s.byOwner[a.Owner] = f
	s.log.Info("owner joins", zap.Stringer("owner", a.Owner), zap.Uint64("pool", a.Pool),
		zap.String("publisher", source.PublisherName(a.PublisherID)), zap.Uint64("events", a.LastEventID), zap.String("model", a.Model), zap.Uint32("block size", a.BlockSize))
	return f, nil
}

// Tick ends the feeds whose publisher fell silent, and forgets old fenced and refused
// publishers. It returns the queries to send now.
func (s *Set) Tick(now time.Time) []Query {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordInputLocked(now)
	for _, f := range s.feeds {
		if s.silentLocked(f, now) {
			s.counters.Expired++
			s.fenceLocked(&f.announcement, f.announcedAt, false)
			s.endLocked(f, fmt.Sprintf("the publisher was silent for %v", s.silenceTimeout))
		}
	}
	for _, f := range s.restored {
		if s.silentLocked(f, now) {
			s.forgetRestoredLocked(f)
		}
	}
	s.gate.sweep(now)
	s.sweepFencedLocked(now)
	s.sweepStrangersLocked(now)
	maps.DeleteFunc(s.refused, func(_ uint64, r refusal) bool { return now.Sub(r.seenAt) > 2*s.silenceTimeout })
	s.refreshLocked()
	s.retireModelsLocked(now)
	var due []Query
	for _, f := range s.feeds {
		due = s.askLocked(due, f, now)
	}
	return due
}
