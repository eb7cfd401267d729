package feed

import (
	"maps"
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

const (
	// maxStrangers bounds Set.strangers. The announcements of further agents come by themselves within
	// seconds.
	maxStrangers = source.MaxAgents
	// askedPerTick bounds the agents that are asked at a tick, and so the announcements that come at once.
	askedPerTick = 16
	// firstAsk and lastAsk bound the pause between two questions to one agent.
	firstAsk = time.Second
	lastAsk  = 30 * time.Second
	// strangeFor is how long a status with an unknown publisher tells of now. Statuses come each second.
	strangeFor = 3 * time.Second
)

// stranger is an agent with publishers that have not announced themselves to this router.
type stranger struct {
	source int
	asked  int // times
	// askedAt is when the agent was asked, askAt when it may be asked next. seenAt is when the last status
	// with an unknown publisher came.
	askedAt, askAt, seenAt time.Time
}

// handleStatusLocked applies s.status, a message with the state of an agent's streams, unless err says that
// it is damaged. It returns the queries to send now. An agent with unknown publishers waits for TakeStrangers.
func (s *Set) handleStatusLocked(fr *source.Frame, err error, now time.Time) (due []Query) {
	if err != nil {
		s.countUndecodableLocked(err)
		return nil
	}
	s.counters.Statuses++
	if fr.Age > s.silenceTimeout {
		s.counters.Outdated++
		return nil
	}
	unknown := uint64(0)
	for i := range s.status.Streams {
		one := &s.status.Streams[i]
		a, ok := s.announcementLocked(one)
		if !ok {
			if s.isStrangeLocked(one) {
				unknown++
			}
			continue
		}
		f := s.handleAnnouncementLocked(&a, fr.Source, now.Add(-fr.Age))
		if s.notify != nil {
			s.notify(fr.Source, &a, f != nil)
		}
		due = s.askLocked(due, f, now)
	}
	if s.counters.Strangers += unknown; unknown > 0 {
		s.noteStrangerLocked(fr.Source, now)
	}
	return due
}

// announcementLocked returns the last announcement of a publisher with a new status. ok is false for a
// publisher that is not followed, and for one whose last word comes as an announcement.
func (s *Set) announcementLocked(one *kvevent.StreamStatus) (a kvevent.Announcement, ok bool) {
	f := s.feeds[one.PublisherID]
	if f == nil {
		f = s.restored[one.PublisherID]
	}
	if f == nil || one.Health == kvevent.HealthGone || one.Kind != f.owner().Kind {
		return a, false
	}
	a = f.announcement
	one.Apply(&a)
	if s.withoutEvents {
		ok = stripBlocks(&a)
		return a, ok
	}
	return a, true
}

// isStrangeLocked reports whether a publisher without a feed may get one by an announcement.
func (s *Set) isStrangeLocked(one *kvevent.StreamStatus) bool {
	_, fenced := s.fenced[one.PublisherID]
	_, refused := s.refused[one.PublisherID]
	ignored := s.withoutEvents && one.Kind == kv.OwnerPool
	return !fenced && !refused && !ignored && one.Health != kvevent.HealthGone && s.feeds[one.PublisherID] == nil
}

// noteStrangerLocked records that the agent of s.status has unknown publishers.
func (s *Set) noteStrangerLocked(from int, now time.Time) {
	one, known := s.strangers[s.status.Agent]
	if !known && len(s.strangers) >= maxStrangers {
		return
	}
	one.source, one.seenAt = from, now
	s.strangers[s.status.Agent] = one
}

// Stranger is an agent that has publishers which this router does not know.
type Stranger struct {
	// Source is that of the agent's frames; see source.Frame.
	Source int
	Agent  uint64
}

// TakeStrangers appends the agents to ask now for the announcements of all their publishers, a few at a
// time. An agent that is asked in vain is asked again, with growing pauses.
func (s *Set) TakeStrangers(dst []Stranger, now time.Time) []Stranger {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := askedPerTick
	for agent, one := range s.strangers {
		if room == 0 {
			break
		}
		known := !one.seenAt.After(one.askedAt) || now.Sub(one.seenAt) > strangeFor
		if known || now.Before(one.askAt) || s.disconnected[one.source] {
			continue
		}
		one.asked++
		one.askedAt = now
		one.askAt = now.Add(backoff.Nth(backoff.Doubling(firstAsk, lastAsk), one.asked))
		s.strangers[agent] = one
		s.counters.AgentsAsked++
		dst = append(dst, Stranger{one.source, agent})
		room--
	}
	return dst
}

// sweepStrangersLocked forgets agents whose publishers are all known, or that fell silent.
func (s *Set) sweepStrangersLocked(now time.Time) {
	maps.DeleteFunc(s.strangers, func(_ uint64, one stranger) bool { return now.Sub(one.seenAt) > 2*lastAsk })
}
