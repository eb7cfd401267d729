package pools

import (
	"cmp"
	"context"
	"slices"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// makeRoom closes a pool that nobody uses, for namespace ns, or waits for another
// session that does so for it: one without blocks, else the one that has been unused
// for longest. Pools whose last session has just ended are waited for. The error is a
// refusal: all of them are in use.
func (s *Set) makeRoom(ctx context.Context, ns kv.NamespaceID) error {
	s.mu.Lock()
	if other := s.making[ns]; other != nil {
		s.mu.Unlock()
		return awaitRoom(ctx, other)
	}
	made := make(chan struct{})
	s.making[ns] = made
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.making, ns)
		close(made)
	}()
	for {
		idle, going := s.idlePools()
		left := s.retireOne(idle)
		if left == nil {
			left = going
		}
		if left != nil {
			return awaitRoom(ctx, left)
		}
		if !awaitQuiet(ctx, idle) {
			return refusal.Retry(proto.CodeLimit, "HELLO namespace: the agent has pools of %d namespaces, of %d that it can have, and all are in use", s.count(), MaxPools)
		}
	}
}

// awaitQuiet waits until nothing is under way any more in one of those pools of idle
// that have no session; false when there is none.
func awaitQuiet(ctx context.Context, idle []*entry) bool {
	draining := slices.DeleteFunc(slices.Clone(idle), func(e *entry) bool { return !e.pool.Draining() })
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	quiet := make(chan error, len(draining))
	for _, e := range draining {
		go func() { quiet <- e.pool.Quiesce(ctx) }() // ends with ctx
	}
	for range draining {
		if <-quiet == nil {
			return true
		}
	}
	return false
}

// awaitRoom waits for a pool that makes room.
func awaitRoom(ctx context.Context, left <-chan struct{}) error {
	select {
	case <-left:
		return nil
	case <-ctx.Done():
		return refusal.Retry(proto.CodeLimit, "HELLO namespace: the pool that makes room for another namespace takes more than %v", poolRoomTimeout)
	}
}

// idlePools are the entries that nobody is asking for. going is closed when a pool
// that makes room for another namespace has gone, nil when there is none.
func (s *Set) idlePools() (idle []*entry, going <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		switch {
		case e.left != nil:
			going = e.left
		case e.callers == 0:
			idle = append(idle, e)
		}
	}
	return idle, going
}

// retireOne begins to close one pool of idle, one without blocks first and then that
// which has been unused for longest, and returns what is closed when it has gone; nil
// when all of them are in use.
func (s *Set) retireOne(idle []*entry) (left <-chan struct{}) {
	type candidate struct {
		*entry
		since uint64
		empty bool
	}
	var unused []candidate
	for _, e := range idle {
		if since, empty, ok := e.pool.Unused(); ok {
			unused = append(unused, candidate{e, since, empty})
		}
	}
	slices.SortFunc(unused, func(a, b candidate) int {
		switch {
		case a.empty == b.empty:
			return cmp.Compare(a.since, b.since)
		case a.empty:
			return -1
		}
		return 1
	})
	for _, c := range unused {
		if left = s.retire(c.entry); left != nil {
			return left
		}
	}
	return nil
}

// retire begins to close the pool of an entry, unless somebody asks for it: then it
// returns nil. The stream ends, and the entry goes, when the removal of the last
// block is in it.
func (s *Set) retire(e *entry) <-chan struct{} {
	s.mu.Lock()
	if e.callers > 0 || e.left != nil || s.entries[e.ns] != e {
		s.mu.Unlock()
		return nil
	}
	left := make(chan struct{})
	e.left = left
	s.mu.Unlock()
	gone, err := e.pool.Retire()
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		e.left = nil
		close(left)
		return nil
	}
	s.log.Info("a pool makes room for another namespace", zap.Stringer("namespace", e.ns))
	go func() { // ends when the pool has given its room back; closeStreams waits for it
		defer close(left)
		<-gone
		s.from.closed(e.ns)
		s.drop(e)
	}()
	return left
}

// count is how many pools there are, those included that make room.
func (s *Set) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}

func oneIf(yes bool) uint64 {
	if yes {
		return 1
	}
	return 0
}
