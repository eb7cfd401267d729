package feed

import (
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/metric"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Quality says how well the index of a decision matches the candidates' blocks.
type Quality string

const (
	// Exact says that the index has the blocks of every candidate.
	Exact Quality = "exact"
	// Degraded says that blocks of at least one candidate are missing or stale. The router
	// repairs them, unless the index has no room.
	Degraded Quality = "degraded"
	// Fallback says that the index has the blocks of no candidate.
	Fallback Quality = "fallback"
)

// View describes a model's workers to a decision.
type View struct {
	// Workers counts the workers. Published counts the workers with a publisher.
	Workers, Published int
	// Pairs is true while most workers hash pairs of tokens.
	Pairs   bool
	Quality Quality
}

// workerExactLocked reports whether the index has all blocks of the worker of feed f and of its
// pool.
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

// PoolPublisher returns the publisher of the pool of a worker; ok is false without one.
func (s *Set) PoolPublisher(w kv.Worker) (id uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	worker := s.byOwner[kv.WorkerOwner(w)]
	if worker == nil || worker.announcement.Pool == 0 {
		return 0, false
	}
	pool := s.byOwner[kv.PoolOwner(worker.announcement.Pool)]
	if pool == nil {
		return 0, false
	}
	return pool.announcement.PublisherID, true
}

// exactLocked reports whether a feed is exact, its source is connected, and its owner is
// not ambiguous.
func (s *Set) exactLocked(f *feed) bool {
	return f.exact() && !s.disconnected[f.source] && f.rival == 0
}

// Worker describes a worker that may get requests.
type Worker struct {
	Worker kv.Worker
	// Pool is the id of the worker's pool, 0 for none.
	Pool      uint64
	Namespace kv.NamespaceID
	Model     string
	BlockSize uint32
	// Card is the worker's announced card. Card.Source says where the worker comes from.
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
	// Cursor is the id of the last applied event. Announced is the id of the last announced
	// event.
	Cursor, Announced uint64
	// Health is HealthExact while the feed and its publisher are exact, else
	// HealthDegraded.
	Health kvevent.Health
	// DigestOK is false while the blocks differ from the publisher's.
	DigestOK bool
	// Lost is how many (block, tier) pairs of the publisher the index lacks.
	Lost uint64
	// Rival is the fenced publisher that still announces the same owner, 0 for none.
	Rival    uint64
	Counters Counters
}

// States returns the state of every feed, ordered by owner.
func (s *Set) States() []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]State, 0, len(s.feeds))
	for id, f := range s.feeds {
		info := State{
			PublisherID: id, Owner: f.owner(), Pool: f.announcement.Pool,
			Cursor: f.cursor, Announced: f.announcement.LastEventID,
			Health: kvevent.HealthDegraded, DigestOK: !f.diverged && f.lostPairs == 0, Lost: f.lostPairs, Rival: f.rival, Counters: f.counters,
		}
		if s.exactLocked(f) {
			info.Health = kvevent.HealthExact
		}
		out = append(out, info)
	}
	slices.SortFunc(out, func(a, b State) int { return a.Owner.Compare(b.Owner) })
	return out
}

// Counters count the events and repairs of a publisher's stream. The metric names follow
// "blockyard_router_".
type Counters struct {
	Applied             uint64 `metric:"events_applied" help:"Events applied to the index."`
	Stale               uint64 `metric:"events_stale" help:"Events at or below the cursor, already applied."`
	Unstored            uint64 `metric:"events_unstored" help:"Events that the index had no room for."`
	Foreign             uint64 `metric:"events_foreign" help:"Events of another owner than their publisher's."`
	Overflowed          uint64 `metric:"events_overflowed" help:"Events dropped from the full queue of a recovering feed; the feed queries for them later."`
	Gaps                uint64 `metric:"gaps" help:"Gaps found in the ids of events."`
	GapsRepaired        uint64 `metric:"gaps_repaired" help:"Gaps in the ids of events repaired."`
	Divergences         uint64 `metric:"divergences" help:"Digests that differed without a missing event."`
	DivergencesRepaired uint64 `metric:"repairs" help:"Divergences repaired by a dump."`
	Queries             uint64 `metric:"queries" help:"Queries to publishers."`
	QueryFailures       uint64 `metric:"query_failures" help:"Queries without a usable answer."`
	Dumps               uint64 `metric:"dumps" help:"Answers with all blocks of the owner."`
	CutDumps            uint64 `metric:"dumps_cut" help:"Interrupted dumps; the feed queries for the rest."`
	Refills             uint64 `metric:"refills" help:"Dumps that restored blocks after the index had room again."`
}

// Stats is a snapshot of all feeds, with the counters of feeds that ended. The metric names
// follow "blockyard_router_".
type Stats struct {
	Feeds      int `metric:"feeds" help:"Publishers that the router follows."`
	ExactFeeds int `metric:"feeds_exact" help:"Publishers whose blocks are exact."`
	Ambiguous  int `metric:"owners_ambiguous" help:"Owners with two live publishers."`
	Counters
	Undecodable uint64 `metric:"messages_undecodable" help:"Messages of unknown form."`
	Unannounced uint64 `metric:"messages_unannounced" help:"Messages of unannounced publishers."`
	Outdated    uint64 `metric:"announcements_outdated" help:"Announcements of a stream older than the feed timeout."`
	Statuses    uint64 `metric:"agent_statuses" help:"Messages with the state of all streams of an agent."`
	Strangers   uint64 `metric:"agent_statuses_unannounced" help:"Streams in such messages whose publisher is not announced yet."`
	AgentsAsked uint64 `metric:"agents_asked" help:"Questions to agents for the announcements of their publishers."`
	Stalls      uint64 `metric:"stalls" help:"Pauses of the router of a second or more."`
	Contests    uint64 `metric:"owner_contests" help:"Owners that got a second live publisher."`
	Unfenced    uint64 `metric:"publishers_unfenced" help:"Fenced publishers forgotten for lack of room."`
	Refused     uint64 `metric:"publishers_refused" help:"Publishers refused."`
	Fenced      uint64 `metric:"publishers_fenced" help:"Announcements of fenced publishers."`
	Expired     uint64 `metric:"owners_expired" help:"Owners that fell silent."`
	Gone        uint64 `metric:"owners_gone" help:"Owners that said goodbye."`
	Resumed     uint64 `metric:"owners_resumed" help:"Owners of a snapshot whose publisher announced itself."`
	Displaced   uint64 `metric:"registered_displaced" help:"Registered workers replaced by a publisher of another model."`
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

// contribution is one feed's part of a tally. The zero value counts nothing.
type contribution struct {
	counted bool
	worker  bool
	// pool is a pool's own id, or the id of a worker's pool; 0 for none.
	pool uint64
	// exact is true while the feed is exact. everComplete is true once the blocks have been
	// complete, for publishers that report blocks.
	exact, everComplete bool
	// registered is true for a worker without a publisher. hashesPairs is true for a worker
	// whose engine hashes pairs of tokens.
	registered, hashesPairs bool
}

// tally sums up the feeds of a model. The change of one feed updates the sum in constant
// time.
type tally struct {
	// workers counts the workers. incomplete counts the workers that are not exact or whose
	// pool is not exact. everComplete counts workers and used pools that have been complete.
	workers, incomplete, everComplete int
	// published counts workers with a publisher. hashesPairs counts workers whose engine
	// hashes pairs of tokens.
	published, hashesPairs int
	pools                  map[uint64]poolTally
}

// poolTally counts a pool's workers. exactMembers counts the workers whose own feed is
// exact. exact and everComplete are the contribution of the pool.
type poolTally struct {
	members, exactMembers int
	exact, everComplete   bool
}

// incomplete returns for how many workers of the pool the index may lack blocks: for all of them
// unless it has all blocks of the pool itself, else for those whose own feed is not exact.
func (p *poolTally) incomplete() int {
	if p.exact {
		return p.members - p.exactMembers
	}
	return p.members
}

// countIfInUse returns 1 for a pool that has been complete and has workers.
func (p *poolTally) countIfInUse() int {
	if p.everComplete && p.members > 0 {
		return 1
	}
	return 0
}

func newTally() tally { return tally{pools: make(map[uint64]poolTally)} }

// add adds what one feed contributes to the sums of its model, n times: 1 adds it, -1 subtracts it.
// A worker with a pool is complete only with the pool, so its pool's sums decide.
func (t *tally) add(c contribution, n int) {
	if !c.counted {
		return
	}
	if c.worker {
		t.workers += n
		if !c.registered {
			t.published += n
		}
		if c.hashesPairs {
			t.hashesPairs += n
		}
		if c.everComplete {
			t.everComplete += n
		}
		if c.pool == 0 { // the worker is complete if its own feed is
			if !c.exact {
				t.incomplete += n
			}
			return
		}
	}
	t.addToPool(c, n)
}

// addToPool adds the contribution of a pool, or of a worker with a pool, n times: 1 adds it, -1
// subtracts it. The change may complete all workers of the pool, so their part of the sums is
// subtracted before it and added after it.
func (t *tally) addToPool(c contribution, n int) {
	p := t.pools[c.pool]
	t.incomplete -= p.incomplete()
	t.everComplete -= p.countIfInUse()
	if c.worker {
		p.members += n
		if c.exact {
			p.exactMembers += n
		}
	} else {
		p.exact, p.everComplete = n > 0 && c.exact, n > 0 && c.everComplete
	}
	t.incomplete += p.incomplete()
	t.everComplete += p.countIfInUse()
	if p == (poolTally{}) {
		delete(t.pools, c.pool)
	} else {
		t.pools[c.pool] = p
	}
}

// view returns what decisions need to know of the model: its workers, and the quality of the
// index for them.
func (t *tally) view() View {
	v := View{Workers: t.workers, Published: t.published, Pairs: 2*t.hashesPairs > t.workers, Quality: Exact}
	switch {
	case t.everComplete == 0: // of no worker and no pool the index has ever had all blocks
		v.Quality = Fallback
	case t.incomplete > 0: // of some worker or its pool it lacks blocks now
		v.Quality = Degraded
	}
	return v
}

// countLocked brings the tally of the model, from which its View is made, up to date with feed f: it
// replaces the contribution of f. Call it after each change of f or of its source.
func (s *Set) countLocked(f *feed) {
	a := &f.announcement
	now := contribution{
		counted: true, worker: a.Owner.Kind == kv.OwnerWorker, pool: a.Pool, exact: s.exactLocked(f),
		everComplete: f.everComplete && !a.Card.Silent, registered: source.IsRegistered(a), hashesPairs: a.Card.Eagle,
	}
	if !now.worker { // the owner is a pool, and announces no pool of its own
		now.pool = a.Owner.ID
	}
	if now == f.contribution {
		return
	}
	f.model.tally.add(f.contribution, -1)
	f.model.tally.add(now, 1)
	f.contribution = now
}

// recountLocked updates the sums of the model after a change of feed f, and publishes the model's
// view if it has changed. Feeds that have ended, and restored feeds, do not count.
func (s *Set) recountLocked(f *feed) {
	if f.contribution.counted {
		s.countLocked(f)
		s.refreshModelLocked(f.model)
	}
}

// uncountLocked removes the contribution of a feed from the tally.
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
	if v == before {
		return
	}
	m.view = v
	m.SetView(v)
	if v.Workers != before.Workers || v.Published != before.Published {
		s.directory.Changed()
	}
}
