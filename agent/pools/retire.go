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

// retireIdle retires an unused pool to make room for namespace ns: one without blocks first,
// else the one unused for longest. A second call for ns waits for the first. retireIdle waits
// for pools whose last session has just ended. The error is a refusal: every pool is in use.
func (s *Set) retireIdle(ctx context.Context, ns kv.NamespaceID) error {
	s.mu.Lock()
	if other := s.makingRoom[ns]; other != nil {
		s.mu.Unlock()
		return awaitRoom(ctx, other)
	}
	done := make(chan struct{})
	s.makingRoom[ns] = done
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.makingRoom, ns)
		close(done)
	}()
	for {
		idle, retiring := s.idlePools()
		if gone := cmp.Or(s.retireOne(idle), retiring); gone != nil {
			return awaitRoom(ctx, gone)
		}
		if !awaitQuiet(ctx, idle) {
			return refusal.Retry(proto.CodeLimit, "HELLO namespace: all %d pools of the agent are in use, limit %d", s.count(), MaxPools)
		}
	}
}

// awaitQuiet waits until one of the pools in idle, which have no session, has finished its
// operations, such as writes to disk, and may be retired. It returns false when none of them has
// operations, or when ctx ends.
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

// awaitRoom waits until gone is closed: a pool is retired.
func awaitRoom(ctx context.Context, gone <-chan struct{}) error {
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return refusal.Retry(proto.CodeLimit, "HELLO namespace: a pool is being retired to make room, which takes more than %v", retireTimeout)
	}
}

// idlePools returns the entries that no call of Open uses. retiring is the channel of a pool
// that is being retired, nil when none is.
func (s *Set) idlePools() (idle []*entry, retiring <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		switch {
		case e.retiring != nil:
			retiring = e.retiring
		case e.callers == 0:
			idle = append(idle, e)
		}
	}
	return idle, retiring
}

// retireOne begins to retire one pool of idle, the pools that no call of Open uses: one without
// blocks, else the one unused for longest. gone is closed when the pool is gone. It is nil when
// all pools are in use.
func (s *Set) retireOne(idle []*entry) (gone <-chan struct{}) {
	type candidate struct {
		*entry
		since uint64 // smaller: unused for longer
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
		if gone = s.retire(c.entry); gone != nil { // nil: a session has begun meanwhile
			return gone
		}
	}
	return nil
}

// retire begins to retire the pool of an entry. It returns nil when a call of Open uses the
// entry or the pool is in use. The entry is removed after the stream has published the removal
// of the pool's last block; then the channel is closed.
func (s *Set) retire(e *entry) <-chan struct{} {
	s.mu.Lock()
	if e.callers > 0 || e.retiring != nil || s.entries[e.ns] != e { // used, or retired meanwhile
		s.mu.Unlock()
		return nil
	}
	retiring := make(chan struct{})
	e.retiring = retiring
	s.mu.Unlock()
	retired, err := e.pool.Retire()
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		e.retiring = nil
		close(retiring)
		return nil
	}
	s.log.Info("a pool makes room for another namespace", zap.Stringer("namespace", e.ns))
	go func() { // closeStreams waits for it
		defer close(retiring)
		<-retired
		s.source.closed(e.ns) // its memory and disk space are free again
		s.drop(e)
	}()
	return retiring
}

// count returns the number of pools, those that are being retired included.
func (s *Set) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}
