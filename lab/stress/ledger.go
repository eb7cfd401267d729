package stress

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// place is one copy of a block.
type place struct {
	ns   kv.NamespaceID
	tier kv.Tier
	key  kv.StoredKey
}

func (p place) in(t kv.Tier) place {
	p.tier = t
	return p
}

// content is what a copy may hold: one of these commits. There are several only
// after a restart, until the copy is first served. Copies made from one another
// share their content.
type content struct{ nonces []uint64 }

// ledger knows from the manager's events which copies there are, and from the
// clients' commits what each of them must hold; doc.go has the rules. It is safe
// for concurrent use.
type ledger struct {
	mu sync.Mutex
	// life numbers the managers: events of one that has ended are nobody's.
	life   int
	events uint64
	// opened are the namespaces whose pool is open in this life.
	opened map[kv.NamespaceID]bool
	// joining are those whose pool was open before its disk tier was all there.
	joining  map[kv.NamespaceID]bool
	resident map[place]*content
	// filling are the commits under way, by the host copies that they make; offered
	// those of handles and of resumed grants, which make none where there is one
	// already or one is read.
	filling, offered map[place]uint64
	// lastHost is the last content of a host copy that is gone: a copy on disk may
	// still be made of it.
	lastHost map[place]*content
	// comeback is what a copy holds if the next pool finds it; exact says that it
	// must find all of them.
	comeback map[place]*content
	exact    map[kv.NamespaceID]bool
	// past are all the commits that a copy on disk ever held.
	past map[place][]uint64
	// broken is the first event that could not be.
	broken error
}

func newLedger() *ledger {
	return &ledger{
		opened: map[kv.NamespaceID]bool{}, joining: map[kv.NamespaceID]bool{}, resident: map[place]*content{}, filling: map[place]uint64{}, offered: map[place]uint64{},
		lastHost: map[place]*content{}, comeback: map[place]*content{}, exact: map[kv.NamespaceID]bool{}, past: map[place][]uint64{},
	}
}

// sink is the ledger as the blockmgr.EventSink of one life.
type sink struct {
	*ledger
	life int
}

// BlockStored implements blockmgr.EventSink.
func (s sink) BlockStored(ns kv.NamespaceID, t kv.Tier, b blockmgr.Block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != s.ledger.life {
		return
	}
	at := place{ns, t, b.Key}
	s.events++
	if s.resident[at] != nil {
		s.breakLocked("block %s is stored in %s twice", b.Key, t)
		return
	}
	c := s.madeLocked(at)
	if c == nil {
		s.breakLocked("block %s comes to %s out of nothing", b.Key, t)
		return
	}
	s.resident[at] = c
	if t == kv.TierDisk {
		for _, n := range c.nonces {
			if !slices.Contains(s.past[at], n) {
				s.past[at] = append(s.past[at], n)
			}
		}
	}
}

// madeLocked returns what a new copy holds, nil if there is nothing that it could
// have been made of.
func (l *ledger) madeLocked(at place) *content {
	host, disk := at.in(kv.TierHost), at.in(kv.TierDisk)
	source := l.resident[host]
	if source == nil {
		source = l.lastHost[host]
	}
	found := l.comeback[at]
	if found != nil && (!l.opened[at.ns] || at.tier == kv.TierDisk && l.joining[at.ns]) {
		if at.tier == kv.TierDisk && source != nil {
			// Found by the pool, or written by it already: there is no telling.
			return &content{slices.Concat(found.nonces, source.nonces)}
		}
		return found
	}
	if at.tier == kv.TierDisk {
		return source
	}
	if nonce, ok := l.filling[at]; ok {
		delete(l.filling, at)
		return &content{[]uint64{nonce}}
	}
	if nonce, ok := l.offered[at]; ok {
		c := &content{[]uint64{nonce}}
		if read := l.resident[disk]; read != nil {
			c.nonces = append(c.nonces, read.nonces...)
		}
		return c
	}
	return l.resident[disk]
}

// BlockRemoved implements blockmgr.EventSink.
func (s sink) BlockRemoved(ns kv.NamespaceID, t kv.Tier, b blockmgr.Block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != s.ledger.life {
		return
	}
	at := place{ns, t, b.Key}
	s.events++
	c := s.resident[at]
	if c == nil {
		s.breakLocked("block %s is removed from %s, where it was not", b.Key, t)
		return
	}
	delete(s.resident, at)
	if t == kv.TierHost {
		s.lastHost[at] = c
	}
}

func (l *ledger) breakLocked(format string, args ...any) {
	if l.broken == nil {
		l.broken = fmt.Errorf("events: "+format, args...)
	}
}

// begin starts the next life and returns its sink.
func (l *ledger) begin() blockmgr.EventSink {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.life++
	return sink{l, l.life}
}

// open says that the namespace's pool is open. Where nothing could have been lost
// it must have found every copy; with joining, those on disk may still come.
func (l *ledger) open(ns kv.NamespaceID, joining bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opened[ns], l.joining[ns] = true, joining
	for at := range l.comeback {
		if at.ns != ns || joining && at.tier == kv.TierDisk {
			continue
		}
		if l.exact[ns] && l.resident[at] == nil {
			return fmt.Errorf("block %s in %s is lost, although the agent was closed in good order", at.key, at.tier)
		}
		delete(l.comeback, at)
	}
	return l.broken
}

// joined says that the disk tier of a pool is all there: no more copies come back.
func (l *ledger) joined(ns kv.NamespaceID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.joining[ns] {
		return
	}
	delete(l.joining, ns)
	maps.DeleteFunc(l.comeback, func(at place, _ *content) bool { return at.ns == ns })
}

// ending is how a life ends.
type ending struct {
	// flushed: everything on disk is as the last manager knew it. lossless: every
	// copy must be found again. reverted: what is on disk may be older than the last
	// agent. dark: host memory is gone.
	flushed, lossless, reverted, dark bool
}

// end ends a life. What the pools that were open had may come back in the next;
// pools that were not opened still have what they had.
func (l *ledger) end(how ending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.life++
	for at, c := range l.resident {
		if at.tier == kv.TierHost || how.flushed {
			l.comeback[at] = c
		}
	}
	if !how.flushed {
		for at, nonces := range l.past {
			if l.opened[at.ns] || how.reverted {
				l.comeback[at] = &content{slices.Clone(nonces)}
			}
		}
	}
	if how.dark {
		for at := range l.comeback {
			if at.tier == kv.TierHost {
				delete(l.comeback, at)
			}
		}
	}
	for ns := range l.opened {
		l.exact[ns] = how.lossless
	}
	if how.dark || how.reverted {
		clear(l.exact)
	}
	clear(l.opened)
	clear(l.joining)
	clear(l.resident)
	clear(l.filling)
	clear(l.lastHost)
}

// commit announces which contents the next host copies will hold.
func (l *ledger) commit(ns kv.NamespaceID, grants []grant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range grants {
		made := l.filling
		if g.resumed {
			made = l.offered
		}
		made[place{ns, kv.TierHost, g.block.Key}] = g.nonce
	}
}

// committed says that the commit has ended. Each content that had to must have become
// a copy, unless host memory has the block already: of two slots that were granted for
// one block, as after a RESUME, the first to be committed stores it.
func (l *ledger) committed(ns kv.NamespaceID, grants []grant) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.offered)
	for _, g := range grants {
		at := place{ns, kv.TierHost, g.block.Key}
		if _, left := l.filling[at]; left && l.resident[at] == nil {
			l.breakLocked("block %s was committed and not stored", g.block.Key)
		}
		delete(l.filling, at)
	}
	return l.broken
}

// offer announces what host copies may come of a registration.
func (l *ledger) offer(ns kv.NamespaceID, blocks []blockmgr.Block, nonce uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range blocks {
		l.offered[place{ns, kv.TierHost, blocks[i].Key}] = nonce
	}
}

// offerEnds says that the registration has ended.
func (l *ledger) offerEnds() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.offered)
}

// serve reports whether a host copy may hold that commit. Where it might have
// held several it is known from now on.
func (l *ledger) serve(ns kv.NamespaceID, key kv.StoredKey, nonce uint64) (allowed []uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.resident[place{ns, kv.TierHost, key}]
	if c == nil {
		return nil, false
	}
	if !slices.Contains(c.nonces, nonce) {
		return slices.Clone(c.nonces), false
	}
	c.nonces = []uint64{nonce}
	return nil, true
}

// compare checks that a pool's dump is what the events said. Events go on while
// it is taken; then it is taken again.
func (l *ledger) compare(pool *blockmgr.Pool) error {
	const tries = 1000
	for range tries {
		l.mu.Lock()
		before := l.events
		l.mu.Unlock()
		dump, unannounced := pool.Dump(), pool.Stats().Unannounced
		l.mu.Lock()
		if l.events == before && unannounced == 0 {
			defer l.mu.Unlock()
			return l.compareLocked(pool.NamespaceID(), dump)
		}
		l.mu.Unlock()
	}
	return nil
}

func (l *ledger) compareLocked(ns kv.NamespaceID, dump []blockmgr.BlockInfo) error {
	if l.broken != nil {
		return l.broken
	}
	n := 0
	for _, info := range dump {
		for _, t := range kv.Tiers {
			if !info.Tiers.Has(t) {
				continue
			}
			n++
			if l.resident[place{ns, t, info.Block.Key}] == nil {
				return fmt.Errorf("block %s is in %s, and no event said so", info.Block.Key, t)
			}
		}
	}
	for at := range l.resident {
		if at.ns == ns {
			n--
		}
	}
	if n != 0 {
		return fmt.Errorf("namespace %s: events tell of %d blocks that the pool does not have", ns, -n)
	}
	return nil
}
