package feed

import (
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
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

// standing is what a feed counts for in a tally; the zero value counts for nothing.
type standing struct {
	counts bool
	worker bool
	// pool is a pool's own id, or the id of that whose blocks count for a worker;
	// 0 is none.
	pool uint64
	// exact is set while nothing is missing, told once the blocks have been
	// complete, of a publisher that tells of blocks at all.
	exact, told bool
	// registered is set for a worker that no publisher speaks for, pairs for one whose
	// engine hashes pairs of tokens.
	registered, pairs bool
}

// tally sums up the standings of a model's feeds, so that a change of one feed is known
// of the whole model at once, however many workers there are.
type tally struct {
	// workers are those known, short those of them to whose own blocks or pool's
	// something is missing; told counts workers and pools in use that have told
	// what they hold.
	workers, short, told int
	// published are the workers that a publisher speaks for, pairs those whose engine
	// hashes pairs of tokens.
	published, pairs int
	pools            map[uint64]poolTally
}

// poolTally is a pool and its workers; exactMembers are those that lack nothing of
// their own.
type poolTally struct {
	members, exactMembers int
	exact, told           bool
}

func (p *poolTally) short() int {
	if p.exact {
		return p.members - p.exactMembers
	}
	return p.members
}

// inUse is 1 for a pool that has told what it holds and counts for a worker.
func (p *poolTally) inUse() int {
	if p.told && p.members > 0 {
		return 1
	}
	return 0
}

func newTally() tally { return tally{pools: make(map[uint64]poolTally)} }

// add counts a standing n times; -1 takes back what was counted before.
func (t *tally) add(s standing, n int) {
	if !s.counts {
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
		if s.told {
			t.told += n
		}
		if s.pool == 0 {
			if !s.exact {
				t.short += n
			}
			return
		}
	}
	t.addToPool(s, n)
}

func (t *tally) addToPool(s standing, n int) {
	p := t.pools[s.pool]
	t.short -= p.short()
	t.told -= p.inUse()
	if s.worker {
		p.members += n
		if s.exact {
			p.exactMembers += n
		}
	} else {
		p.exact, p.told = n > 0 && s.exact, n > 0 && s.told
	}
	t.short += p.short()
	t.told += p.inUse()
	if p == (poolTally{}) {
		delete(t.pools, s.pool)
	} else {
		t.pools[s.pool] = p
	}
}

// view is what a decision needs to know of the feeds.
func (t *tally) view() View {
	v := View{Workers: t.workers, Published: t.published, Pairs: 2*t.pairs > t.workers, Quality: Exact}
	switch {
	case t.told == 0:
		v.Quality = Fallback
	case t.short > 0:
		v.Quality = Degraded
	}
	return v
}

// countLocked lets a feed, which is among s.feeds, count for what it is now.
func (s *Set) countLocked(f *feed) {
	a := &f.announcement
	now := standing{
		counts: true, worker: a.Owner.Kind == kv.OwnerWorker, pool: a.Pool, exact: s.exactLocked(f),
		told: f.synced && !a.Card.Silent, registered: source.IsRegistered(a), pairs: a.Card.Eagle,
	}
	if !now.worker {
		now.pool = a.Owner.ID
	}
	if now == f.standing {
		return
	}
	f.model.tally.add(f.standing, -1)
	f.model.tally.add(now, 1)
	f.standing = now
}

// recountLocked does so after a change, and publishes what changed. A feed that is
// over, or not heard of yet, counts for nothing.
func (s *Set) recountLocked(f *feed) {
	if f.standing.counts {
		s.countLocked(f)
		s.refreshModelLocked(f.model)
	}
}

// dismissLocked lets a feed count for nothing.
func (s *Set) dismissLocked(f *feed) {
	f.model.tally.add(f.standing, -1)
	f.standing = standing{}
}

// refreshLocked publishes the views that differ from the last ones.
func (s *Set) refreshLocked() {
	for _, m := range s.models {
		s.refreshModelLocked(m)
	}
}

// refreshModelLocked does so for one model.
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
