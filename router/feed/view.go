package feed

import (
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Quality says how good a decision's knowledge is.
type Quality string

const (
	// QualityExact: the index equals what every candidate holds.
	Exact Quality = "exact"
	// QualityDegraded: something is missing for at least one candidate. It is being
	// repaired, unless it is the index that has no room for it.
	Degraded Quality = "degraded"
	// QualityFallback: the decision used no knowledge of what lies where.
	Fallback Quality = "fallback"
)

// ClusterView is what a decision needs to know of a model's workers.
type View struct {
	// Published are those of the workers that a publisher speaks for.
	Workers, Published int
	// Pairs is set while most workers hash pairs of tokens, Kept for a model that is
	// never retired.
	Pairs, Kept bool
	Quality     Quality
}

// workerExactLocked reports whether all that counts for a worker is exact.
func (s *Set) workerExactLocked(f *feed) bool {
	if !s.exactLocked(f) {
		return false
	}
	if f.announcement.Pool == 0 {
		return true
	}
	pool := s.byOwner[kv.PoolOwner(f.announcement.Pool)]
	return pool != nil && pool.model == f.model && s.exactLocked(pool)
}

// exactLocked reports whether a feed is exact, its source there, and its publisher the
// only one of the owner.
func (s *Set) exactLocked(f *feed) bool {
	return f.exact() && !s.offline[f.source] && f.rival == 0
}

// WorkerInfo describes a worker that requests may be sent to.
type Worker struct {
	Worker kv.Worker
	// Pool is the id of the pool whose blocks count for the worker, 0 for none.
	Pool      uint64
	Namespace kv.NamespaceID
	Model     string
	BlockSize uint32
	// Card is what is known of the worker besides; its Source says where from.
	Card kvevent.ModelCard
	// Quality is QualityExact or QualityDegraded.
	Quality Quality
}

// Workers are the workers that requests may be sent to, in order.
func (s *Set) Workers() []Worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Worker
	for o, f := range s.byOwner {
		if o.Kind != kv.OwnerWorker {
			continue
		}
		a := &f.announcement
		w := Worker{Worker: o.Worker(), Pool: a.Pool, Namespace: a.Namespace,
			Model: a.Model, BlockSize: a.BlockSize, Card: a.Card, Quality: Degraded}
		if s.workerExactLocked(f) {
			w.Quality = Exact
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b Worker) int { return a.Worker.Compare(b.Worker) })
	return out
}

// FeedInfo describes the stream of one publisher.
type State struct {
	PublisherID uint64
	Owner       kv.Owner
	Pool        uint64
	// Cursor is the id of the last event applied, Announced that of the last one
	// made, as of the last announcement.
	Cursor, Announced uint64
	// Health is the publisher's, or HealthDegraded while something is missing
	// here.
	Health kvevent.Health
	// DigestOK is false while the blocks are known to differ from the publisher's.
	DigestOK bool
	// Lost is how many (block, tier) pairs the publisher told of that the index does
	// not keep.
	Lost uint64
	// Rival is another publisher that speaks for the same owner now, 0 without one.
	Rival    uint64
	Counters Counters
}

// States are the feeds, ordered by owner.
func (s *Set) States() []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]State, 0, len(s.feeds))
	for id, f := range s.feeds {
		info := State{
			PublisherID: id, Owner: f.owner(), Pool: f.announcement.Pool,
			Cursor: f.cursor, Announced: f.announcement.LastEventID,
			Health: kvevent.HealthDegraded, DigestOK: !f.diverged && f.lost == 0, Lost: f.lost, Rival: f.rival, Counters: f.counters,
		}
		if s.exactLocked(f) {
			info.Health = kvevent.HealthExact
		}
		out = append(out, info)
	}
	slices.SortFunc(out, func(a, b State) int { return a.Owner.Compare(b.Owner) })
	return out
}

// FeedCounters count what happened to the stream of a publisher.
type Counters struct {
	// Applied counts events that became part of the index, Stale events that it
	// had already, Unstored events that it had no room for, Foreign events of
	// another owner than their publisher's, and Overflowed events that did not
	// fit the queue of a recovering feed and were asked for later.
	Applied, Stale, Unstored, Foreign, Overflowed uint64
	// Gaps counts holes found in the ids, GapsRepaired those closed.
	Gaps, GapsRepaired uint64
	// Divergences counts digests that differed with nothing missing, and
	// DivergencesRepaired those answered by a dump.
	Divergences, DivergencesRepaired uint64
	// Queries counts questions to the publisher, QueryFailures those without a
	// usable answer, Dumps those answered by everything the owner held, and CutDumps
	// those of the failures that brought a part of it.
	Queries, QueryFailures, Dumps, CutDumps uint64
	// Refills counts dumps that were asked for because the index had room again.
	Refills uint64
}

func (c *Counters) add(o *Counters) {
	c.Applied += o.Applied
	c.Stale += o.Stale
	c.Unstored += o.Unstored
	c.Foreign += o.Foreign
	c.Overflowed += o.Overflowed
	c.Gaps += o.Gaps
	c.GapsRepaired += o.GapsRepaired
	c.Divergences += o.Divergences
	c.DivergencesRepaired += o.DivergencesRepaired
	c.Queries += o.Queries
	c.QueryFailures += o.QueryFailures
	c.Dumps += o.Dumps
	c.CutDumps += o.CutDumps
	c.Refills += o.Refills
}

// FeedStats are gauges and counters over all feeds, those that have ended
// included.
type Stats struct {
	// Feeds and ExactFeeds are the publishers listened to and those of them
	// whose blocks are exact, Ambiguous owners that two publishers speak for now.
	Feeds, ExactFeeds, Ambiguous int
	Counters
	// Undecodable and Unannounced count messages: of unknown form, and events
	// that came before their publisher's announcement.
	Undecodable, Unannounced uint64
	// Outdated counts announcements of a stream that were older than the feed timeout,
	// Stalls how often the router stood still for longer than stallLimit.
	Outdated, Stalls uint64
	// Contests counts owners that became ambiguous, Unfenced fenced publishers that
	// were forgotten for lack of room.
	Contests, Unfenced uint64
	// Refused counts publishers that do not fit in, Fenced announcements of
	// publishers that were over, Expired and Gone owners that fell silent and
	// that said goodbye, Resumed owners of a snapshot that were heard of again, and
	// Displaced registered workers that did not fit to a publisher.
	Refused, Fenced, Expired, Gone, Resumed, Displaced uint64
}

// Stats is a snapshot of the counters.
func (s *Set) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.counters
	out.Feeds = len(s.feeds)
	for _, f := range s.feeds {
		out.add(&f.counters)
		if f.exact() {
			out.ExactFeeds++
		}
		if f.rival != 0 {
			out.Ambiguous++
		}
	}
	return out
}
