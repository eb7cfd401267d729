package zmq

import (
	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Stats are the gauges and counters of a Source. Counters include ranks that ended.
type Stats struct {
	// Engines and Ranks are followed now. Degraded ranks were not reached yet, or something
	// is missing.
	Engines, Ranks, Degraded int
	// Reopened counts sockets that failed and were opened again.
	Reopened uint64
	// Followed are the sums over the ranks, Published those over their feeds.
	Followed  consolidator.RankStats
	Published publisher.FeedStats
}

// addRank adds the counters and gauges of a rank to s.
func (s *Stats) addRank(r *rank) {
	r.mu.Lock()
	s.Reopened += r.reopened
	s.Followed.Add(r.ended)
	current := r.current.Load() // under r.mu, so that no follower counts twice
	r.mu.Unlock()
	if current != nil {
		s.Followed.Add(current.Stats())
	}
	published, _ := r.feed.Stats()
	s.Published.Add(published)
}

// Counters returns the counters of all engines, those that have left included, and gauges of the
// present ones.
func (s *Source) Counters() Stats {
	s.mu.Lock()
	out := s.ended
	out.Followed = consolidator.RankStats{} // has a map: Add must not change that of s.ended
	out.Followed.Add(s.ended.Followed)
	out.Engines = len(s.engines)
	ranks := make([]*rank, 0, len(s.publishers))
	for _, r := range s.publishers {
		ranks = append(ranks, r)
		if s.engines[r.engine.Worker] == r.engine {
			out.Ranks++
		}
	}
	s.mu.Unlock()
	for _, r := range ranks {
		out.addRank(r)
		if r.stream.Status().Health == kvevent.HealthDegraded {
			out.Degraded++
		}
	}
	return out
}

// Stats implements source.Transport. The feeds are in this process, so the Source is always
// connected and drops no announcement.
func (s *Source) Stats() source.Stats { return source.Stats{Connected: true} }

// Metrics returns the counters and gauges under the names that the router's metrics have.
func (s *Source) Metrics() []source.Metrics {
	c := s.Counters()
	f, p := &c.Followed, &c.Published
	var dropped uint64
	for _, n := range f.Dropped {
		dropped += n
	}
	return []source.Metrics{{
		Name: source.FromEngine,
		Counters: map[string]uint64{
			"frames": f.Frames, "bytes": f.Bytes, "bad_frames": f.BadFrames, "batches": f.Batches, "events": f.Events,
			"blocks": f.Blocks, "bad_events": f.BadEvents, "dropped_blocks": dropped,
			"gaps": f.Gaps, "repaired": f.Repaired, "lost": f.Lost, "replays": f.Replays, "replayed": f.Replayed,
			"replay_failures": f.ReplayFailures, "duplicates": f.Duplicates, "outdated": f.Outdated,
			"restarts": f.Restarts, "overflows": f.Overflows, "reopened": c.Reopened,
			"announcements": p.Announcements, "skipped": p.Skipped, "queries": p.Queries, "dumps": p.Dumps,
		},
		Gauges: map[string]uint64{
			"engines": uint64(c.Engines), "ranks": uint64(c.Ranks), "degraded_ranks": uint64(c.Degraded),
			"known_blocks": f.Known, "parked_bytes": f.ParkedBytes,
		},
	}}
}
