package feed

import (
	"maps"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

const (
	// maxLoads bounds the owners whose report is kept.
	maxLoads = 1 << 15
	// loadTimeout is how long a report is shown.
	loadTimeout = time.Minute
)

// Load is the last load report of an owner.
type Load struct {
	kvevent.LoadReport
	// At is when the report came, by the local clock.
	At time.Time
}

// loadTable keeps the last load report of each owner. It is safe for concurrent use.
type loadTable struct {
	mu   sync.Mutex
	last map[kv.Owner]Load
	// accepted counts kept reports, undecodable counts reports of unknown form, and refused
	// counts reports without room.
	accepted, undecodable, refused uint64
}

func newLoadTable() *loadTable { return &loadTable{last: make(map[kv.Owner]Load)} }

// add decodes and keeps a report. It returns false when the report is not kept.
func (t *loadTable) add(data []byte, now time.Time) (kvevent.LoadReport, bool) {
	r, err := kvevent.DecodeLoadReport(data)
	return r, t.keep(&r, err, now)
}

// keep keeps a report as the owner's last one and returns true. It only counts a report that could
// not be decoded, for which err is set, or that finds no room.
func (t *loadTable) keep(r *kvevent.LoadReport, err error, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.undecodable++
		return false
	}
	if _, known := t.last[r.Owner]; !known && len(t.last) >= maxLoads {
		t.expireLocked(now)
		if len(t.last) >= maxLoads {
			t.refused++
			return false
		}
	}
	t.accepted++
	t.last[r.Owner] = Load{LoadReport: *r, At: now}
	return true
}

// expireLocked removes the reports older than loadTimeout.
func (t *loadTable) expireLocked(now time.Time) {
	maps.DeleteFunc(t.last, func(_ kv.Owner, l Load) bool { return now.Sub(l.At) > loadTimeout })
}

// all returns the reports of the last loadTimeout.
func (t *loadTable) all(now time.Time) map[kv.Owner]Load {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expireLocked(now)
	return maps.Clone(t.last)
}

// LoadStats counts load reports. The metric names follow "blockyard_router_".
type LoadStats struct {
	Taken       uint64 `metric:"load_reports" help:"Load reports accepted."`
	Undecodable uint64 `metric:"load_reports_undecodable" help:"Load reports of unknown form."`
	Refused     uint64 `metric:"load_reports_refused" help:"Load reports of more owners than the router keeps."`
}

func (t *loadTable) stats() LoadStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return LoadStats{t.accepted, t.undecodable, t.refused}
}

// Loads returns the last load report of each worker and pool, at most a minute old.
func (s *Set) Loads(now time.Time) map[kv.Owner]Load { return s.loads.all(now) }

// LoadStats returns the counters of load reports.
func (s *Set) LoadStats() LoadStats { return s.loads.stats() }

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
