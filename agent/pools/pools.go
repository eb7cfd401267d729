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
	"github.com/blockyard-ai/blockyard/publisher"
)

const (
	// MaxPools bounds the namespaces that a node has pools of at a time. It is the
	// number that the slot tables of the block manager have room for.
	MaxPools = 64
	// poolRoomTimeout is how long a namespace waits for the end of a pool that makes
	// room for it, or of one of its own.
	poolRoomTimeout = 2 * time.Second
)

// source is where pools come from.
type source interface {
	// open opens the pool of a namespace, or finds the one that is open and gives it
	// room. first says that the node has none of the namespace. An error that is
	// errNoRoom or blockmgr.ErrNamespaces says that a pool which nobody uses is in
	// the way.
	open(ns kv.Namespace, first bool) (*blockmgr.Pool, error)
	// closed says that the pool of a namespace is gone, or that there is none after
	// all.
	closed(ns kv.NamespaceID)
}

// nodePools are the block manager's pools, each with a share of what the node has.
type nodePools struct {
	room    *room
	manager *blockmgr.Manager
}

func (p nodePools) open(ns kv.Namespace, first bool) (*blockmgr.Pool, error) {
	if first {
		if err := p.room.admit(&ns, p.unused); err != nil {
			return nil, err
		}
	}
	return p.manager.Pool(ns)
}

// unused are the namespaces whose pools could make room.
func (p nodePools) unused() (ids []kv.NamespaceID) {
	for _, pool := range p.manager.Pools() {
		if _, _, ok := pool.Unused(); ok {
			ids = append(ids, pool.NamespaceID())
		}
	}
	return ids
}

func (p nodePools) closed(ns kv.NamespaceID) { p.room.forget(ns) }

// entry is the pool of one namespace and its stream.
type entry struct {
	ns kv.NamespaceID
	// opened is closed when the pool has been opened or, with err, could not be.
	// stream, pool and err are set by then and do not change.
	opened chan struct{}
	stream *events.PoolStream
	pool   *blockmgr.Pool
	err    error

	// Set.mu guards what follows. callers are the calls of Open that use the
	// entry. left is nil unless the pool makes room for another one, and is closed
	// when the entry has gone, or stays after all.
	callers int
	left    chan struct{}
}

// Open returns the pool of ns and the stream that it is
// published as, after begin has begun a session in it: until then it makes room
// for nobody. Before its first use the pool is made known to the routers:
// what it recovers from disk is published as it is found. When it cannot be opened
// then, everything is taken back, so that a refused namespace leaves nothing behind.
// Later calls ask the block manager too: a pool that has no room tries to get some. Where there
// are as many pools as there may be, or these have all the room, one that nobody uses
// makes room.
func (s *Set) Open(ns *kv.Namespace, begin func(*blockmgr.Pool) error) (*blockmgr.Pool, *residency.Stream, error) {
	ctx, cancel := context.WithTimeout(context.Background(), poolRoomTimeout)
	defer cancel()
	for placed := false; ; {
		e, pool, err := s.try(ctx, ns, begin)
		// Namespaces of an earlier agent whose sessions live take places in the tables
		// too. One that cannot be given back frees none, and is the last that goes.
		full := errors.Is(err, blockmgr.ErrNamespaces)
		switch {
		case err == nil:
			return pool, e.stream.Stream(), nil
		case full && placed:
			return nil, nil, refusal.Retry(proto.CodeLimit, "HELLO namespace: %w", err)
		case !full && !errors.Is(err, errNoRoom):
			return nil, nil, err
		}
		placed = placed || full
		if err := s.makeRoom(ctx, ns.ID()); err != nil {
			return nil, nil, err
		}
	}
}

// try is one try of Open, for which no other pool has to go but for want of
// an entry.
func (s *Set) try(ctx context.Context, ns *kv.Namespace, begin func(*blockmgr.Pool) error) (e *entry, pool *blockmgr.Pool, err error) {
	e, made, err := s.takeEntry(ctx, ns.ID())
	if err != nil {
		return nil, nil, err
	}
	defer s.leaveEntry(e)
	if made {
		pool, err = s.fill(e, ns)
	} else {
		<-e.opened // another session may be opening it
		if err = e.err; err == nil {
			pool, err = s.from.open(*ns, false)
		}
	}
	if err == nil {
		err = begin(pool)
	}
	return e, pool, err
}

// takeEntry is the entry of a namespace, which stays until leaveEntry. Who made it
// must fill it.
func (s *Set) takeEntry(ctx context.Context, ns kv.NamespaceID) (e *entry, made bool, err error) {
	for {
		e, made, left := s.entry(ns)
		switch {
		case left != nil:
			err = awaitRoom(ctx, left)
		case e == nil:
			err = s.makeRoom(ctx, ns)
		default:
			return e, made, nil
		}
		if err != nil {
			return nil, false, err
		}
	}
}

// entry is the entry of a namespace, made when there is none; nil when there is
// no place for it. left says that there is one which is about to go.
func (s *Set) entry(ns kv.NamespaceID) (e *entry, made bool, left <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e = s.entries[ns]; {
	case e != nil && e.left != nil:
		return nil, false, e.left
	case e == nil && len(s.entries) >= MaxPools:
		return nil, false, nil
	case e == nil:
		e = &entry{ns: ns, opened: make(chan struct{})}
		s.entries[ns], made = e, true
	}
	e.callers++
	return e, made, nil
}

func (s *Set) leaveEntry(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.callers--
}

// fill opens the pool of a new entry, or drops the entry, which has no feed any more
// by then: the next one of the namespace has the same id.
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
		s.from.closed(e.ns)
	}()
	e.stream, err = s.hub.OpenPool(kv.PoolOwner(s.ID(e.ns)), publisher.Meta{
		Namespace: e.ns, Model: ns.Model, BlockSize: ns.BlockSize, Card: s.card,
	})
	if err != nil {
		return nil, err
	}
	if pool, err = s.from.open(*ns, true); err != nil {
		return nil, err
	}
	e.pool = pool
	e.stream.Opened(pool)
	return pool, nil
}

// drop ends the stream of an entry whose pool is gone, and then the entry.
func (s *Set) drop(e *entry) {
	if e.stream != nil {
		e.stream.End()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, e.ns)
}

// closeStreams announces that the pools are gone. The ranks must have ended. Pools
// that make room are waited for, but not for long: a disk may not answer.
func (s *Set) closeStreams() {
	timeout := time.NewTimer(poolRoomTimeout)
	defer timeout.Stop()
	for _, left := range s.leaving() {
		select {
		case <-left:
			continue
		case <-timeout.C:
		}
		break
	}
	s.hub.ClosePools()
}

// leaving are the pools that make room.
func (s *Set) leaving() (left []<-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if e.left != nil {
			left = append(left, e.left)
		}
	}
	return left
}
