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

// content is the commits that a copy may hold. After a restart there may be several,
// until the copy is served once. Copies made from one another share their content.
type content struct{ nonces []uint64 }

// ledger knows from the manager's events which copies exist, and from the clients'
// commits what each of them may hold. docs/reliability.md has the rules. It is safe for
// concurrent use.
type ledger struct {
	mu sync.Mutex
	// life numbers the managers. Events of an ended manager are dropped.
	life   int
	events uint64
	// opened are the namespaces with an open pool in this life.
	opened map[kv.NamespaceID]bool
	// joining are the namespaces whose disk tier is still being recovered.
	joining  map[kv.NamespaceID]bool
	resident map[place]*content
	// filling are commits under way, by the host copies that they make. offered are
	// those of handles and resumed grants, which make no copy where one exists or is
	// being read.
	filling, offered map[place]uint64
	// lastHost is the last content of a host copy that is gone. A disk copy may still
	// be written from it.
	lastHost map[place]*content
	// mayComeBack is what a copy holds if the next pool finds it. With mustFindAll the pool must
	// find all of them.
	mayComeBack map[place]*content
	mustFindAll map[kv.NamespaceID]bool
	// diskHistory are all commits that a disk copy ever held.
	diskHistory map[place][]uint64
	// broken is the first event that contradicts the ledger.
	broken error
}

func newLedger() *ledger {
	return &ledger{
		opened: map[kv.NamespaceID]bool{}, joining: map[kv.NamespaceID]bool{}, resident: map[place]*content{}, filling: map[place]uint64{}, offered: map[place]uint64{},
		lastHost: map[place]*content{}, mayComeBack: map[place]*content{}, mustFindAll: map[kv.NamespaceID]bool{}, diskHistory: map[place][]uint64{},
	}
}

// sink is the blockmgr.EventSink of one life.
type sink struct {
	*ledger
	life int
}

// BlockStored implements blockmgr.EventSink: it records the new copy of a block, with the
// contents that it may have. A copy that exists already, or that nothing can have made, breaks
// the ledger.
func (s sink) BlockStored(ns kv.NamespaceID, t kv.Tier, b blockmgr.Block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != s.ledger.life {
		return // from an agent that has ended
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
			if !slices.Contains(s.diskHistory[at], n) {
				s.diskHistory[at] = append(s.diskHistory[at], n)
			}
		}
	}
}

// madeLocked returns the content that a new copy of a block may have: that of the copy in the other
// tier, of a commit, or of a copy that an earlier agent left (l.mayComeBack). It returns nil if
// there is nothing that the copy could have been made from. The caller holds l.mu.
func (l *ledger) madeLocked(at place) *content {
	host, disk := at.in(kv.TierHost), at.in(kv.TierDisk)
	source := l.resident[host]
	if source == nil {
		source = l.lastHost[host]
	}
	found := l.mayComeBack[at]
	recovering := !l.opened[at.ns] || at.tier == kv.TierDisk && l.joining[at.ns]
	if found != nil && recovering {
		if at.tier == kv.TierDisk && source != nil {
			// The pool found the copy, or has written it already: both are possible.
			return &content{slices.Concat(found.nonces, source.nonces)}
		}
		return found
	}
	if at.tier == kv.TierDisk { // disk copies are written from host copies only
		return source
	}
	if nonce, ok := l.filling[at]; ok {
		delete(l.filling, at)
		return &content{[]uint64{nonce}}
	}
	if nonce, ok := l.offered[at]; ok {
		c := &content{[]uint64{nonce}}
		if read := l.resident[disk]; read != nil { // or the copy was read from disk
			c.nonces = append(c.nonces, read.nonces...)
		}
		return c
	}
	return l.resident[disk]
}

// BlockRemoved implements blockmgr.EventSink: it records that a copy is gone. A copy that was not
// there breaks the ledger.
func (s sink) BlockRemoved(ns kv.NamespaceID, t kv.Tier, b blockmgr.Block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != s.ledger.life {
		return // from an agent that has ended
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
		s.lastHost[at] = c // a disk copy may still be written from it
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

// open records that the pool of namespace ns is open, and that its events have told which copies
// it found. Where nothing can have been lost, it must have found every copy. With joining, the
// pool still reads the disk's table and more copies may come.
func (l *ledger) open(ns kv.NamespaceID, joining bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opened[ns], l.joining[ns] = true, joining
	for at := range l.mayComeBack {
		if at.ns != ns || joining && at.tier == kv.TierDisk {
			continue
		}
		if l.mustFindAll[ns] && l.resident[at] == nil {
			return fmt.Errorf("block %s in %s is lost, although the agent was closed in good order", at.key, at.tier)
		}
		delete(l.mayComeBack, at)
	}
	return l.broken
}

// joined records that the disk tier of a pool is complete: no more copies come back.
func (l *ledger) joined(ns kv.NamespaceID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.joining[ns] {
		return
	}
	delete(l.joining, ns)
	maps.DeleteFunc(l.mayComeBack, func(at place, _ *content) bool { return at.ns == ns })
}

// ending says how the life of an agent ends.
type ending struct {
	// flushed: the disk is as the manager knew it. lossless: every copy must be found
	// again. reverted: the disk may be older than the last agent. hostLost: host memory is
	// gone.
	flushed, lossless, reverted, hostLost bool
}

// end ends the life of an agent; how says what survived of memory and disk. It sets l.mayComeBack:
// the copies of blocks that the next agent may find, with the contents (commits) that each may
// have. It sets l.mustFindAll: the namespaces of which the next agent must find every copy. Pools
// that were not open keep what they had.
func (l *ledger) end(how ending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.life++
	for at, c := range l.resident {
		if at.tier == kv.TierHost || how.flushed { // the disk is as the agent knew it
			l.mayComeBack[at] = c
		}
	}
	if !how.flushed { // a disk copy may have any content that it ever had
		for at, nonces := range l.diskHistory {
			if l.opened[at.ns] || how.reverted {
				l.mayComeBack[at] = &content{slices.Clone(nonces)}
			}
		}
	}
	if how.hostLost { // host memory is gone
		for at := range l.mayComeBack {
			if at.tier == kv.TierHost {
				delete(l.mayComeBack, at)
			}
		}
	}
	for ns := range l.opened {
		l.mustFindAll[ns] = how.lossless
	}
	if how.hostLost || how.reverted {
		clear(l.mustFindAll)
	}
	clear(l.opened)
	clear(l.joining)
	clear(l.resident)
	clear(l.filling)
	clear(l.lastHost)
}

// commit records the contents of grants that are about to be committed, so that the events of the
// commit find them.
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

// committed checks, after a commit of grants, that each block has a copy in host memory now. A
// block that host memory had already keeps its copy: of two slots for one block the first commit
// stores it.
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

// offer announces the host copies that a registration may make.
func (l *ledger) offer(ns kv.NamespaceID, blocks []blockmgr.Block, nonce uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range blocks {
		l.offered[place{ns, kv.TierHost, blocks[i].Key}] = nonce
	}
}

// offerEnds ends the registration.
func (l *ledger) offerEnds() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.offered)
}

// serve reports whether the host copy of a block may have the content of the commit nonce. If it
// may, the copy has that content only from then on. If not, allowed has the contents that it may
// have.
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

// compare checks that a pool's dump has exactly the blocks that the events told of. When an event
// comes meanwhile it takes another dump, and after many tries it gives up without an error.
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

// compareLocked returns an error when dump, the blocks that a namespace's pool says it has, differs
// from the copies of which the pool's events told (l.resident). The caller holds l.mu.
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
	for at := range l.resident { // n: copies in the dump beyond those of the events
		if at.ns == ns {
			n--
		}
	}
	if n != 0 {
		return fmt.Errorf("namespace %s: events tell of %d blocks that the pool does not have", ns, -n)
	}
	return nil
}
