package feed

import (
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/metric"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Quality says how much a decision knew.
type Quality string

const (
	// Exact: the index equals what every candidate holds.
	Exact Quality = "exact"
	// Degraded: the index lacks something of at least one candidate. The router repairs
	// it, unless the index has no room.
	Degraded Quality = "degraded"
	// Fallback: the decision knew nothing of what workers hold.
	Fallback Quality = "fallback"
)

// View is what a decision needs to know of a model's workers.
type View struct {
	// Workers counts the workers, Published the ones with a publisher.
	Workers, Published int
	// Pairs is true while most workers hash pairs of tokens. Kept is true for a model
	// that is never retired.
	Pairs, Kept bool
	Quality     Quality
}

// workerExactLocked reports whether the worker and its pool are exact.
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

// exactLocked reports whether a feed is exact, its source is connected, and its owner is
// not ambiguous.
func (s *Set) exactLocked(f *feed) bool {
	return f.exact() && !s.offline[f.source] && f.rival == 0
}

// Worker describes a worker that may get requests.
type Worker struct {
	Worker kv.Worker
	// Pool is the id of the worker's pool, 0 for none.
	Pool      uint64
	Namespace kv.NamespaceID
	Model     string
	BlockSize uint32
	// Card is what the worker's announcement says besides. Card.Source says who announced it.
	Card kvevent.ModelCard
	// Quality is Exact or Degraded.
	Quality Quality
}

// Workers returns the workers that may get requests, in order.
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

// State describes the feed of one publisher.
type State struct {
	PublisherID uint64
	Owner       kv.Owner
	Pool        uint64
	// Cursor is the id of the last applied event, Announced the id of the publisher's
	// last event in its last announcement.
	Cursor, Announced uint64
	// Health is the publisher's, or HealthDegraded while the feed lacks something.
	Health kvevent.Health
	// DigestOK is false while the blocks differ from the publisher's.
	DigestOK bool
	// Lost is how many (block, tier) pairs of the publisher the index does not hold.
	Lost uint64
	// Rival is another publisher that announces the same owner now, 0 for none.
	Rival    uint64
	Counters Counters
}

// States returns the feeds, ordered by owner.
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

// Counters count what happened to the stream of a publisher. The metric names follow
// "blockyard_router_".
type Counters struct {
	Applied             uint64 `metric:"events_applied" help:"Events applied to the index."`
	Stale               uint64 `metric:"events_stale" help:"Events at or below the cursor, which the index already had."`
	Unstored            uint64 `metric:"events_unstored" help:"Events that the index had no room for."`
	Foreign             uint64 `metric:"events_foreign" help:"Events of another owner than their publisher's."`
	Overflowed          uint64 `metric:"events_overflowed" help:"Events that did not fit the queue of a recovering feed; the feed asks for them later."`
	Gaps                uint64 `metric:"gaps" help:"Gaps found in the ids of events."`
	GapsRepaired        uint64 `metric:"gaps_repaired" help:"Gaps in the ids of events that were repaired."`
	Divergences         uint64 `metric:"divergences" help:"Digests that differed with no event missing."`
	DivergencesRepaired uint64 `metric:"repairs" help:"Divergences repaired by a dump."`
	Queries             uint64 `metric:"queries" help:"Questions to publishers."`
	QueryFailures       uint64 `metric:"query_failures" help:"Questions without a usable answer."`
	Dumps               uint64 `metric:"dumps" help:"Answers with everything that the owner held."`
	CutDumps            uint64 `metric:"dumps_cut" help:"Dumps that broke off; the feed asks for the rest."`
	Refills             uint64 `metric:"refills" help:"Dumps that restored blocks after the index had room again."`
}

// Stats is a snapshot of all feeds, with the counters of feeds that ended. The metric names
// follow "blockyard_router_".
type Stats struct {
	Feeds      int `metric:"feeds" help:"Publishers that the router follows."`
	ExactFeeds int `metric:"feeds_exact" help:"Publishers whose blocks are exact."`
	Ambiguous  int `metric:"owners_ambiguous" help:"Owners that two publishers speak for."`
	Counters
	Undecodable uint64 `metric:"messages_undecodable" help:"Messages of unknown form."`
	Unannounced uint64 `metric:"messages_unannounced" help:"Messages of publishers that were not announced yet."`
	Outdated    uint64 `metric:"announcements_outdated" help:"Announcements of a stream that were older than the feed timeout."`
	Stalls      uint64 `metric:"stalls" help:"Pauses of a second or more in which the router applied nothing."`
	Contests    uint64 `metric:"owner_contests" help:"Owners for which a second publisher was heard."`
	Unfenced    uint64 `metric:"publishers_unfenced" help:"Fenced publishers that were forgotten for lack of room."`
	Refused     uint64 `metric:"publishers_refused" help:"Publishers that were not accepted."`
	Fenced      uint64 `metric:"publishers_fenced" help:"Announcements of fenced publishers."`
	Expired     uint64 `metric:"owners_expired" help:"Owners that fell silent."`
	Gone        uint64 `metric:"owners_gone" help:"Owners that said goodbye."`
	Resumed     uint64 `metric:"owners_resumed" help:"Owners of a snapshot whose publisher came back."`
	Displaced   uint64 `metric:"registered_displaced" help:"Registered workers that contradicted a publisher."`
}

// Stats returns the gauges and counters.
func (s *Set) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.counters
	out.Feeds = len(s.feeds)
	for _, f := range s.feeds {
		metric.Add(&out.Counters, &f.counters)
		if f.exact() {
			out.ExactFeeds++
		}
		if f.rival != 0 {
			out.Ambiguous++
		}
	}
	return out
}

// contribution is what a tally counts for one feed. The zero value counts nothing.
type contribution struct {
	counted bool
	worker  bool
	// pool is a pool's own id, or the id of a worker's pool; 0 for none.
	pool uint64
	// exact is true while nothing is missing. reported is true once the blocks have been
	// complete, for publishers that tell of blocks.
	exact, reported bool
	// registered is true for a worker without a publisher, pairs for a worker whose
	// engine hashes pairs of tokens.
	registered, pairs bool
}

// tally sums up the feeds of a model. One feed's change updates the sum in constant
// time, however many workers there are.
type tally struct {
	// workers counts the workers, incomplete the ones of whose blocks, or pool's blocks,
	// something is missing. reported counts workers and used pools that have been complete.
	workers, incomplete, reported int
	// published counts workers with a publisher, pairs workers whose engine hashes pairs
	// of tokens.
	published, pairs int
	pools            map[uint64]poolTally
}

// poolTally is a pool and its workers. exactMembers counts the workers whose own blocks
// are complete.
type poolTally struct {
	members, exactMembers int
	exact, reported       bool
}

func (p *poolTally) incomplete() int {
	if p.exact {
		return p.members - p.exactMembers
	}
	return p.members
}

// inUse returns 1 for a pool that has been complete and has workers.
func (p *poolTally) inUse() int {
	if p.reported && p.members > 0 {
		return 1
	}
	return 0
}

func newTally() tally { return tally{pools: make(map[uint64]poolTally)} }

// add counts a feed n times; -1 takes it out again.
func (t *tally) add(s contribution, n int) {
	if !s.counted {
		return
	}
	if s.worker {
		t.workers += n
		if !s.registered {
			t.published += n
		}
		if s.pairs {
			t.pairs += n
		}
		if s.reported {
			t.reported += n
		}
		if s.pool == 0 {
			if !s.exact {
				t.incomplete += n
			}
			return
		}
	}
	t.addToPool(s, n)
}

func (t *tally) addToPool(s contribution, n int) {
	p := t.pools[s.pool]
	t.incomplete -= p.incomplete()
	t.reported -= p.inUse()
	if s.worker {
		p.members += n
		if s.exact {
			p.exactMembers += n
		}
	} else {
		p.exact, p.reported = n > 0 && s.exact, n > 0 && s.reported
	}
	t.incomplete += p.incomplete()
	t.reported += p.inUse()
	if p == (poolTally{}) {
		delete(t.pools, s.pool)
	} else {
		t.pools[s.pool] = p
	}
}

// view returns the view of the model.
func (t *tally) view() View {
	v := View{Workers: t.workers, Published: t.published, Pairs: 2*t.pairs > t.workers, Quality: Exact}
	switch {
	case t.reported == 0:
		v.Quality = Fallback
	case t.incomplete > 0:
		v.Quality = Degraded
	}
	return v
}

// countLocked updates what the tally counts for a feed of s.feeds.
func (s *Set) countLocked(f *feed) {
	a := &f.announcement
	now := contribution{
		counted: true, worker: a.Owner.Kind == kv.OwnerWorker, pool: a.Pool, exact: s.exactLocked(f),
		reported: f.synced && !a.Card.Silent, registered: source.IsRegistered(a), pairs: a.Card.Eagle,
	}
	if !now.worker {
		now.pool = a.Owner.ID
	}
	if now == f.contribution {
		return
	}
	f.model.tally.add(f.contribution, -1)
	f.model.tally.add(now, 1)
	f.contribution = now
}

// recountLocked updates the tally and publishes a new view. Feeds that ended, or wait
// for their publisher, do not count.
func (s *Set) recountLocked(f *feed) {
	if f.contribution.counted {
		s.countLocked(f)
		s.refreshModelLocked(f.model)
	}
}

// uncountLocked takes a feed out of the tally.
func (s *Set) uncountLocked(f *feed) {
	f.model.tally.add(f.contribution, -1)
	f.contribution = contribution{}
}

// refreshLocked publishes the views that have changed.
func (s *Set) refreshLocked() {
	for _, m := range s.models {
		s.refreshModelLocked(m)
	}
}

// refreshModelLocked publishes the view of one model if it has changed.
func (s *Set) refreshModelLocked(m *modelFeeds) {
	v, before := m.tally.view(), m.view
	v.Kept = m.kept
	if v == before {
		return
	}
	m.view = v
	m.SetView(v)
	if v.Workers != before.Workers || v.Published != before.Published || v.Kept != before.Kept {
		s.directory.Changed()
	}
}
