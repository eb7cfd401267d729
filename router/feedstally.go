package router

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// terms are what all publishers have to agree on.
type terms struct {
	model     string
	blockSize uint32
}

func termsOf(a *kvevent.Announcement) terms { return terms{a.Model, a.BlockSize} }

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
	terms       terms
	registered  bool
}

// tally sums up the standings of all feeds, so that a change of one feed is known
// of the whole cluster at once, however many workers there are.
type tally struct {
	// workers are those known, short those of them to whose own blocks or pool's
	// something is missing; told counts workers and pools in use that have told
	// what they hold.
	workers, short, told int
	pools                map[uint64]poolTally
	agreed               map[terms]termsTally
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

// termsTally counts the feeds of the same terms.
type termsTally struct{ published, registered, workers int }

func (c *termsTally) add(s standing, n int) {
	if s.registered {
		c.registered += n
	} else {
		c.published += n
	}
	if s.worker {
		c.workers += n
	}
}

func newTally() tally {
	return tally{pools: make(map[uint64]poolTally), agreed: make(map[terms]termsTally)}
}

// add counts a standing n times; -1 takes back what was counted before.
func (t *tally) add(s standing, n int) {
	if !s.counts {
		return
	}
	have := t.agreed[s.terms]
	have.add(s, n)
	if have == (termsTally{}) {
		delete(t.agreed, s.terms)
	} else {
		t.agreed[s.terms] = have
	}
	if s.worker {
		t.workers += n
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

// others are terms that differ from the given ones and that some feed has besides
// the one whose standing is but. What is registered gives way to publishers, so
// that only a registered one asks for what others are registered with.
func (t *tally) others(want terms, but standing, registered bool) (terms, bool) {
	for have, count := range t.agreed {
		if have == want {
			continue
		}
		if but.counts && but.terms == have {
			count.add(but, -1)
		}
		if count.published > 0 || registered && count.registered > 0 {
			return have, true
		}
	}
	return terms{}, false
}

// strays reports whether something is registered with other terms.
func (t *tally) strays(want terms) bool {
	for have, count := range t.agreed {
		if have != want && count.registered > 0 {
			return true
		}
	}
	return false
}

// view is what a decision needs to know of the feeds.
func (t *tally) view() clusterView {
	v := clusterView{workers: t.workers, quality: QualityExact}
	for have, count := range t.agreed {
		if count.workers > 0 {
			v.blockSize = int(have.blockSize)
		}
	}
	switch {
	case t.told == 0:
		v.quality = QualityFallback
	case t.short > 0:
		v.quality = QualityDegraded
	}
	return v
}

// countLocked lets a feed, which is among s.feeds, count for what it is now.
func (s *feedSet) countLocked(f *feedState) {
	a := &f.announcement
	now := standing{
		counts: true, worker: a.Owner.Kind == kv.OwnerWorker, pool: a.Pool, exact: s.exactLocked(f),
		told: f.synced && !a.Card.Silent, terms: termsOf(a), registered: isRegistered(a),
	}
	if !now.worker {
		now.pool = a.Owner.ID
	}
	if now == f.standing {
		return
	}
	s.tally.add(f.standing, -1)
	s.tally.add(now, 1)
	f.standing = now
}

// recountLocked does so after a change, and publishes what changed. A feed that is
// over, or not heard of yet, counts for nothing.
func (s *feedSet) recountLocked(f *feedState) {
	if f.standing.counts {
		s.countLocked(f)
		s.refreshLocked()
	}
}

// dismissLocked lets a feed count for nothing.
func (s *feedSet) dismissLocked(f *feedState) {
	s.tally.add(f.standing, -1)
	f.standing = standing{}
}

// refreshLocked publishes a new view when it differs from the last one.
func (s *feedSet) refreshLocked() {
	if v := s.tally.view(); v != *s.current.Load() {
		s.current.Store(&v)
	}
}
