package events

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

const (
	// evictedDelay bounds the wait of a notice for other notices in its frame.
	evictedDelay = 10 * time.Millisecond
	// maxQueuedEvicted bounds the notices that wait for one session, 8 bytes each. More are
	// lost and counted.
	maxQueuedEvicted = 16384
)

// evictions tells sessions which blocks leave their namespace's tiers. The block manager calls
// add with its lock held, so that add only queues.
type evictions struct {
	sent, lost atomic.Uint64 // notices of all sessions

	mu sync.Mutex // serializes change; the map is replaced, never changed
	// queues are the queues of listening sessions, by namespace.
	queues atomic.Pointer[map[kv.NamespaceID][]*EvictionQueue]
}

func newEvictions() *evictions {
	e := &evictions{}
	e.queues.Store(&map[kv.NamespaceID][]*EvictionQueue{})
	return e
}

// add queues a notice of a block that left a tier.
func (e *evictions) add(ns kv.NamespaceID, tier kv.Tier, h kv.SequenceHash) {
	for _, q := range (*e.queues.Load())[ns] {
		q.add(tier, h)
	}
}

// change replaces the map of queues with a copy that do has changed, so that add needs no lock.
// do must not change a slice of the map in place.
func (e *evictions) change(do func(map[kv.NamespaceID][]*EvictionQueue)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := maps.Clone(*e.queues.Load())
	do(all)
	e.queues.Store(&all)
}

// EvictionQueue holds the notices of evicted blocks for one session.
type EvictionQueue struct {
	from *evictions
	ns   kv.NamespaceID
	wake chan struct{} // holds one token: the queue is not empty

	mu     sync.Mutex
	byTier [kv.NumTiers][]kv.SequenceHash
	queued int
	lost   uint64 // since the session began
}

// ListenEvictions returns a queue for the notices of a namespace. Close ends it.
func (h *Hub) ListenEvictions(ns kv.NamespaceID) *EvictionQueue {
	e := h.evictions
	q := &EvictionQueue{from: e, ns: ns, wake: make(chan struct{}, 1)}
	e.change(func(all map[kv.NamespaceID][]*EvictionQueue) {
		all[ns] = append(slices.Clone(all[ns]), q)
	})
	return q
}

// Close removes the queue from the hub.
func (q *EvictionQueue) Close() {
	q.from.change(func(all map[kv.NamespaceID][]*EvictionQueue) {
		left := slices.DeleteFunc(slices.Clone(all[q.ns]), func(other *EvictionQueue) bool { return other == q })
		if all[q.ns] = left; len(left) == 0 {
			delete(all, q.ns)
		}
	})
}

// add queues a notice that block h left a tier. A notice without room is lost and counted. It
// does not wait: the block manager holds its lock.
func (q *EvictionQueue) add(tier kv.Tier, h kv.SequenceHash) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.queued >= maxQueuedEvicted {
		q.lost++
		q.from.lost.Add(1)
		return
	}
	q.byTier[tier] = append(q.byTier[tier], h)
	q.queued++
	select {
	case q.wake <- struct{}{}:
	default: // Run is awake
	}
}

// take empties the queue. lost is the number of notices lost since the session began.
func (q *EvictionQueue) take() (byTier [kv.NumTiers][]kv.SequenceHash, lost uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	byTier, q.byTier, q.queued = q.byTier, [kv.NumTiers][]kv.SequenceHash{}, 0
	return byTier, q.lost
}

// Run sends the notices of blocks that left a tier to a scheduler over c, until stop is closed or
// the connection ends. After the first notice it waits evictedDelay for others, to send them in
// one frame.
func (q *EvictionQueue) Run(c *proto.Conn, stop <-chan struct{}) {
	timer := time.NewTimer(evictedDelay) // each notice resets it before use
	defer timer.Stop()
	for {
		select {
		case <-q.wake:
		case <-stop:
			return
		}
		timer.Reset(evictedDelay)
		select {
		case <-timer.C:
		case <-stop:
			return
		}
		if q.send(c) != nil {
			return
		}
	}
}

// send sends the queued notices, in as few frames as hold them.
func (q *EvictionQueue) send(c *proto.Conn) error {
	byTier, lost := q.take()
	for tier, hashes := range byTier {
		for part := range slices.Chunk(hashes, proto.MaxHashesPerFrame) {
			m := proto.Evicted{Tier: uint8(tier), Hashes: proto.AppendHashes(nil, part), Lost: lost}
			if err := c.Send(proto.TypeEvicted, 0, &m, nil); err != nil {
				return err
			}
			q.from.sent.Add(uint64(len(part)))
		}
	}
	return nil
}
