package agent

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
func (h *eventHub) makeRoom(ctx context.Context, ns kv.NamespaceID, from poolSource) error {
	h.mu.Lock()
	if other := h.making[ns]; other != nil {
		h.mu.Unlock()
		return awaitRoom(ctx, other)
	}
	made := make(chan struct{})
	h.making[ns] = made
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.making, ns)
		close(made)
	}()
	for {
		idle, going := h.idlePools()
		left := h.retireOne(idle, from)
		if left == nil {
			left = going
		}
		if left != nil {
			return awaitRoom(ctx, left)
		}
		if !awaitQuiet(ctx, idle) {
			return refusal.Retry(proto.CodeLimit, "HELLO namespace: the agent has pools of %d namespaces, of %d that it can have, and all are in use", h.poolCount(), maxPools)
		}
	}
}

// awaitQuiet waits until nothing is under way any more in one of those pools of idle
// that have no session; false when there is none.
func awaitQuiet(ctx context.Context, idle []*poolEntry) bool {
	draining := slices.DeleteFunc(slices.Clone(idle), func(e *poolEntry) bool { return !e.pool.Draining() })
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
func (h *eventHub) idlePools() (idle []*poolEntry, going <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.pools {
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
func (h *eventHub) retireOne(idle []*poolEntry, from poolSource) (left <-chan struct{}) {
	type candidate struct {
		*poolEntry
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
		if a.empty != b.empty {
			return cmp.Compare(oneIf(b.empty), oneIf(a.empty))
		}
		return cmp.Compare(a.since, b.since)
	})
	for _, c := range unused {
		if left = h.retire(c.poolEntry, from); left != nil {
			return left
		}
	}
	return nil
}

// retire begins to close the pool of an entry, unless somebody asks for it: then it
// returns nil. The stream ends, and the entry goes, when the removal of the last
// block is in it.
func (h *eventHub) retire(e *poolEntry, from poolSource) <-chan struct{} {
	h.mu.Lock()
	if e.callers > 0 || e.left != nil || h.pools[e.ns] != e {
		h.mu.Unlock()
		return nil
	}
	left := make(chan struct{})
	e.left = left
	h.mu.Unlock()
	gone, err := e.pool.Retire()
	if err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		e.left = nil
		close(left)
		return nil
	}
	h.log.Info("a pool makes room for another namespace", zap.Stringer("namespace", e.ns))
	go func() { // ends when the pool has given its room back; closePools waits for it
		defer close(left)
		<-gone
		from.closed(e.ns)
		e.stream.Flush()
		h.closeStream(e.ownerStream)
		h.forgetPool(e)
	}()
	return left
}

// poolCount is how many pools there are, those included that make room.
func (h *eventHub) poolCount() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.pools)
}

// forgetPool keeps the totals of a pool's stream that has ended.
func (h *eventHub) forgetPool(e *poolEntry) {
	var t EventTotals
	t.addStream(e.ownerStream)
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pools, e.ns)
	h.ended.add(&t)
}

func oneIf(yes bool) uint64 {
	if yes {
		return 1
	}
	return 0
}
