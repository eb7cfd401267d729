package router

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

// feedSet is every publisher that the router listens to. Announcements bring
// owners in, silence and HealthGone take them out. One goroutine changes it;
// others take snapshots.
type feedSet struct {
	models  *Models
	log     *zap.Logger
	timeout time.Duration
	limit   int

	mu      sync.Mutex
	feeds   map[uint64]*feedState // by publisher id
	byOwner map[kv.Owner]*feedState
	// restored are feeds of a snapshot whose publishers were not heard of yet, by
	// publisher id, and restoredOf the same by owner.
	restored   map[uint64]*feedState
	restoredOf map[kv.Owner]*feedState
	gate       queryGate
	// refilling is the last feed that was asked for what the index had lost.
	refilling *feedState
	// position is that of the last frame taken in, of a transport that has such;
	// events counts the events in frames and in answers.
	position uint64
	events   atomic.Uint64
	// fenced are publishers that are not followed any more, by id.
	fenced map[uint64]fence
	// refused are publishers that cannot be taken in, with the reason logged.
	refused map[uint64]refusal
	// offline are the sources that are disconnected. stored is that whose
	// publishers the restored feeds are.
	offline map[int]bool
	stored  int
	attention
	// deaf is set when what workers hold is not wanted: they join and leave, and that
	// is all.
	deaf bool
	// blockSize is the only one that is taken in; 0 takes in every one.
	blockSize uint32
	// heard, unless it is nil, is told what became of each announcement of a
	// source. It is called with mu held.
	heard    func(source int, a *kvevent.Announcement, taken bool)
	decoder  kvevent.EnvelopeDecoder
	envelope kvevent.Envelope
	// counters holds what belongs to no live feed, those that ended included.
	counters FeedStats
}

func newFeedSet(models *Models, o *Options) *feedSet {
	return &feedSet{
		models:     models,
		log:        o.Log,
		timeout:    o.FeedTimeout,
		limit:      o.MaxFeeds,
		feeds:      make(map[uint64]*feedState),
		byOwner:    make(map[kv.Owner]*feedState),
		restored:   make(map[uint64]*feedState),
		restoredOf: make(map[kv.Owner]*feedState),
		gate:       newQueryGate(),
		fenced:     make(map[uint64]fence),
		refused:    make(map[uint64]refusal),
		offline:    make(map[int]bool),
	}
}

// frame takes in one message. The result is the feed that it concerned, if any.
func (s *feedSet) frame(fr source.Frame, now time.Time) *feedState {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listenLocked(now)
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
		if s.deaf && !silence(&a) {
			return nil
		}
		if fr.Age > s.timeout && a.Health != kvevent.HealthGone {
			// It proves nothing about now: what the publisher was is in a snapshot, or is
			// asked for when it is heard of.
			s.counters.Outdated++
			return nil
		}
		f := s.announcementLocked(&a, fr.Source, now.Add(-fr.Age))
		if s.heard != nil {
			s.heard(fr.Source, &a, f != nil)
		}
		return f
	case source.FrameEvents:
		if s.deaf {
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

// connectedLocked takes in that a source is there again or away.
func (s *feedSet) connectedLocked(source int, there bool, now time.Time) {
	if there {
		delete(s.offline, source)
	} else {
		s.offline[source] = true
	}
	for _, all := range []map[uint64]*feedState{s.feeds, s.restored} {
		for _, f := range all {
			if f.source != source {
				continue
			}
			if there && !f.replayed {
				f.seen = now // The silence was ours.
			}
			f.replayed = false
			if f.standing.counts {
				s.countLocked(f)
			}
		}
	}
	s.refreshLocked()
}

func (s *feedSet) undecodableLocked(err error) {
	if s.counters.Undecodable++; s.counters.Undecodable == 1 {
		s.log.Warn("message cannot be decoded; further ones are only counted", zap.Error(err))
	}
}

func (s *feedSet) eventsLocked(now time.Time) *feedState {
	s.events.Add(uint64(len(s.envelope.Events)))
	f := s.feeds[s.envelope.PublisherID]
	if f == nil {
		f = s.restored[s.envelope.PublisherID]
	}
	if f == nil {
		// Its announcement is still to come and says how much was missed.
		s.counters.Unannounced++
		return nil
	}
	for i := range s.envelope.Events {
		f.event(&s.envelope.Events[i], now)
	}
	f.weigh()
	s.recountLocked(f)
	return f
}

// announcementLocked takes in an announcement. The result is the feed that it
// concerned; nil when it is over, or not listened to.
func (s *feedSet) announcementLocked(a *kvevent.Announcement, source int, now time.Time) *feedState {
	if s.fencedLocked(a, source, now) {
		return nil
	}
	f := s.feeds[a.PublisherID]
	if a.Health == kvevent.HealthGone {
		if f != nil {
			s.counters.Gone++
			s.endLocked(f, "its publisher says goodbye")
			s.fenceLocked(a, now, true)
			s.refreshLocked()
		}
		s.forgetRestoredLocked(s.restored[a.PublisherID])
		return nil
	}
	if reason := s.objectionLocked(f, a); reason != "" {
		s.refuseLocked(a, now, reason)
		return nil
	}
	if f != nil && f.model.key != keyOf(a) {
		s.endLocked(f, fmt.Sprintf("its publisher serves %s now", keyOf(a)))
		f = nil
	}
	if f == nil {
		f = s.adoptLocked(a)
	}
	if f == nil {
		var err error
		if f, err = s.beginLocked(a, now); err != nil {
			s.refuseLocked(a, now, err.Error())
			return nil
		}
	}
	pool, card, isNew := f.announcement.Pool, f.announcement.Card, f.seen.IsZero()
	f.source = source
	if s.offline[source] {
		// What is old is no sign of a cursor that is wrong.
		f.behind = 0
	}
	f.announced(a, now)
	f.replayed = s.offline[source]
	if isNew || pool != a.Pool || card != a.Card {
		s.joinLocked(f)
	}
	s.refillLocked(f, now)
	s.countLocked(f)
	s.refreshLocked()
	return f
}

// beginLocked makes a feed for a new publisher. One that has the same owner is
// over: event ids start anew and the owner with them. The error says why there is no
// model for it.
func (s *feedSet) beginLocked(a *kvevent.Announcement, now time.Time) (*feedState, error) {
	m, err := s.openModel(a)
	if err != nil {
		return nil, err
	}
	if former := s.byOwner[a.Owner]; former != nil {
		if source.IsRegistered(&former.announcement) && former.model != m {
			s.counters.Displaced++
		}
		s.endLocked(former, "another publisher speaks for it")
		s.fenceLocked(&former.announcement, now, false)
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

// tick ends the feeds that were silent for too long and forgets publishers that
// are no longer heard of. The result is every feed that is left.
func (s *feedSet) tick(now time.Time) []*feedState {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listenLocked(now)
	left := make([]*feedState, 0, len(s.feeds))
	for _, f := range s.feeds {
		if s.silentLocked(f, now) {
			s.counters.Expired++
			s.fenceLocked(&f.announcement, f.seen, false)
			s.endLocked(f, fmt.Sprintf("nothing was heard of it for %v", s.timeout))
			continue
		}
		left = append(left, f)
	}
	for _, f := range s.restored {
		if s.silentLocked(f, now) {
			s.forgetRestoredLocked(f)
		}
	}
	s.gate.sweep(now)
	s.sweepFencedLocked(now)
	long := func(t time.Time) bool { return now.Sub(t) > 2*s.timeout }
	maps.DeleteFunc(s.refused, func(_ uint64, r refusal) bool { return long(r.seen) })
	s.refreshLocked()
	s.retireModelsLocked(now)
	return left
}

// answered hands a feed the result of its query.
func (s *feedSet) answered(r *queryResult, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.answer != nil {
		s.events.Add(uint64(len(r.answer.Events)))
	}
	if err := r.feed.answered(r.number, r.answer, r.err, now); err != nil {
		s.log.Warn("feed cannot be recovered yet", zap.Stringer("owner", r.feed.owner()),
			zap.Int("failures", r.feed.failures), zap.Error(err))
	}
	s.gate.settle(ticket{r.feed, r.number})
	s.recountLocked(r.feed)
}
