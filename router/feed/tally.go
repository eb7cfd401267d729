package feed

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/source"
)

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
