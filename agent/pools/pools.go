package pools

import (
	"context"
	"errors"
	"time"

	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

const (
	// MaxPools bounds the pools of a node. It equals the number of namespaces that fit into a
	// slot table.
	MaxPools = 64
	// retireTimeout bounds how long a namespace waits for a pool that is being retired.
	retireTimeout = 2 * time.Second
)

// source opens pools.
type source interface {
	// open opens the pool of a namespace, or returns the open pool after it has tried to give
	// the pool more room. first says that the node has no pool of the namespace. errNoRoom and
	// blockmgr.ErrNamespaces say that retiring an unused pool may help.
	open(ns kv.Namespace, first bool) (*blockmgr.Pool, error)
	// closed says that the pool of a namespace was retired or could not be opened.
	closed(ns kv.NamespaceID)
}

// nodePools opens the block manager's pools after admission.
type nodePools struct {
	admission *admission
	manager   *blockmgr.Manager
}

// open implements source. A namespace without a pool must pass the admission first.
func (p nodePools) open(ns kv.Namespace, first bool) (*blockmgr.Pool, error) {
	if first {
		if err := p.admission.admit(&ns, p.unused); err != nil {
			return nil, err
		}
	}
	return p.manager.Pool(ns)
}

// unused lists the namespaces whose pools could be retired.
func (p nodePools) unused() (ids []kv.NamespaceID) {
	for _, pool := range p.manager.Pools() {
		if _, _, ok := pool.Unused(); ok {
			ids = append(ids, pool.NamespaceID())
		}
	}
	return ids
}

func (p nodePools) closed(ns kv.NamespaceID) { p.admission.release(ns) }

// entry is the pool of one namespace and its stream.
type entry struct {
	ns kv.NamespaceID
	// opened is closed once stream and either pool or err are set. They do not change after
	// that.
	opened chan struct{}
	stream *events.PoolStream
	pool   *blockmgr.Pool
	err    error

	// Set.mu guards the fields below.
	// callers counts the calls of Open that use the entry. retiring is nil unless the pool is
	// being retired; it is closed when the entry is removed, or when the pool cannot be retired.
	callers  int
	retiring chan struct{}
}

// Open returns the pool of ns and its event stream, after begin has begun a session in the
// pool. A pool is not retired while Open uses it.
// The first call opens the pool and publishes its stream, so that routers see blocks as they
// are recovered from disk. A pool that cannot be opened leaves nothing behind. Later calls try
// to give the pool more room.
// When the node has no room for another pool, Open retires an unused one. A retryable refusal
// says that all pools are in use.
func (s *Set) Open(ns *kv.Namespace, begin func(*blockmgr.Pool) error) (*blockmgr.Pool, *residency.Stream, error) {
	ctx, cancel := context.WithTimeout(context.Background(), retireTimeout)
	defer cancel()
	for retired := false; ; {
		e, pool, err := s.tryOpen(ctx, ns, begin)
		// full: the slot tables have no free row for a namespace. Sessions of a previous agent
		// keep the rows of their namespaces, so retiring a pool may free none. Then Open
		// retires no further pool.
		full := errors.Is(err, blockmgr.ErrNamespaces)
		switch {
		case err == nil:
			return pool, e.stream.Stream(), nil
		case full && retired:
			return nil, nil, refusal.Retry(proto.CodeLimit, "HELLO namespace: %w", err)
		case !full && !errors.Is(err, errNoRoom):
			return nil, nil, err
		}
		retired = retired || full
		if err := s.retireIdle(ctx, ns.ID()); err != nil {
			return nil, nil, err
		}
	}
}

// tryOpen tries once to open the pool of ns, or to give the open pool more room, and begins a
// session in it. The entry e is returned for its stream. tryOpen retires another pool only if
// there is no free entry. An error may say that there is no room: see Open.
func (s *Set) tryOpen(ctx context.Context, ns *kv.Namespace, begin func(*blockmgr.Pool) error) (e *entry, pool *blockmgr.Pool, err error) {
	e, made, err := s.acquireEntry(ctx, ns.ID())
	if err != nil {
		return nil, nil, err
	}
	defer s.releaseEntry(e)
	if made {
		pool, err = s.fill(e, ns)
	} else {
		<-e.opened // another session may be opening the pool
		if err = e.err; err == nil {
			pool, err = s.source.open(*ns, false) // already admitted
		}
	}
	if err == nil {
		err = begin(pool)
	}
	return e, pool, err
}

// acquireEntry returns the entry of a namespace, its pool and stream, and keeps it from being
// retired until releaseEntry. made is true for a new entry, which the caller must fill. Without a
// free entry it retires an unused pool first. The error is a refusal: all pools are in use.
func (s *Set) acquireEntry(ctx context.Context, ns kv.NamespaceID) (e *entry, made bool, err error) {
	for {
		e, made, gone := s.entry(ns)
		switch {
		case gone != nil: // the namespace's pool is being retired: wait, and make a new one
			err = awaitRoom(ctx, gone)
		case e == nil: // there are MaxPools entries
			err = s.retireIdle(ctx, ns)
		default:
			return e, made, nil
		}
		if err != nil {
			return nil, false, err
		}
	}
}

// entry returns the entry of a namespace, its pool and stream, and makes it if there is none;
// made reports that. It returns a nil entry when there are MaxPools entries, and when the entry
// is being retired: then gone is closed once it is gone.
func (s *Set) entry(ns kv.NamespaceID) (e *entry, made bool, gone <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e = s.entries[ns]; {
	case e != nil && e.retiring != nil:
		return nil, false, e.retiring
	case e == nil && len(s.entries) >= MaxPools:
		return nil, false, nil
	case e == nil:
		e = &entry{ns: ns, opened: make(chan struct{})}
		s.entries[ns], made = e, true
	}
	e.callers++ // no call retires the entry until releaseEntry
	return e, made, nil
}

func (s *Set) releaseEntry(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.callers--
}

// fill opens the pool of a new entry: first its stream, so that events of the blocks that the
// pool recovers have a place, then the pool. An error drops the entry, after its feed is closed:
// the namespace's next feed has the same id. Then e.opened is closed, for which others wait.
func (s *Set) fill(e *entry, ns *kv.Namespace) (pool *blockmgr.Pool, err error) {
	defer close(e.opened)
	defer func() {
		if e.pool != nil {
			return
		}
		if e.err = err; err == nil {
			e.err = errors.New("opening the pool panicked")
		}
		defer s.drop(e)
		s.source.closed(e.ns)
	}()
	e.stream, err = s.hub.OpenPool(kv.PoolOwner(s.ID(e.ns)), ns, s.card)
	if err != nil {
		return nil, err
	}
	if pool, err = s.source.open(*ns, true); err != nil { // true: it must pass the admission
		return nil, err
	}
	e.pool = pool
	e.stream.Opened(pool)
	return pool, nil
}

// drop ends the stream of an entry without a pool, and then removes the entry.
func (s *Set) drop(e *entry) {
	if e.stream != nil {
		e.stream.End()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, e.ns)
}

// closeStreams announces that all pools are gone. The ranks must have ended. It waits a
// bounded time for pools that are being retired: a disk may not answer.
func (s *Set) closeStreams() {
	timeout := time.NewTimer(retireTimeout)
	defer timeout.Stop()
	for _, gone := range s.retiringPools() {
		select {
		case <-gone:
			continue
		case <-timeout.C:
		}
		break
	}
	s.hub.ClosePools()
}

// retiringPools lists the pools that are being retired.
func (s *Set) retiringPools() (gone []<-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if e.retiring != nil {
			gone = append(gone, e.retiring)
		}
	}
	return gone
}
