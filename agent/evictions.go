package agent

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

const (
	// evictedDelay is how long a notice may wait for company.
	evictedDelay = 10 * time.Millisecond
	// maxQueuedEvicted bounds the notices that wait for one session; more are lost
	// and counted. They are 8 bytes each.
	maxQueuedEvicted = 16384
)

// evictionTap passes on what the block manager reports, and tells sessions that
// asked for it what leaves their namespace's tiers. It is called under the block
// manager's lock, so that all it does is to queue.
type evictionTap struct {
	blockmgr.EventSink // the event hub

	told, lost atomic.Uint64 // notices over all sessions

	mu sync.Mutex // of who changes queues; the map is replaced, never changed
	// queues are those of the sessions that listen, by namespace.
	queues atomic.Pointer[map[kv.NamespaceID][]*evictionQueue]
}

func newEvictionTap(sink blockmgr.EventSink) *evictionTap {
	t := &evictionTap{EventSink: sink}
	t.queues.Store(&map[kv.NamespaceID][]*evictionQueue{})
	return t
}

// BlockRemoved implements blockmgr.EventSink.
func (t *evictionTap) BlockRemoved(ns kv.NamespaceID, tier kv.Tier, b blockmgr.Block) {
	t.EventSink.BlockRemoved(ns, tier, b)
	for _, q := range (*t.queues.Load())[ns] {
		q.add(tier, b.Seq)
	}
}

// evictionQueue holds the notices that wait for one session.
type evictionQueue struct {
	tap  *evictionTap
	wake chan struct{} // room for one: the queue is not empty

	mu     sync.Mutex
	byTier [kv.NumTiers][]kv.SequenceHash
	queued int
	lost   uint64 // since the session began
}

// listen makes a queue for the notices of a namespace; ignore ends it.
func (t *evictionTap) listen(ns kv.NamespaceID) *evictionQueue {
	q := &evictionQueue{tap: t, wake: make(chan struct{}, 1)}
	t.change(func(all map[kv.NamespaceID][]*evictionQueue) {
		all[ns] = append(slices.Clone(all[ns]), q)
	})
	return q
}

// ignore takes a queue of a namespace out.
func (t *evictionTap) ignore(ns kv.NamespaceID, q *evictionQueue) {
	t.change(func(all map[kv.NamespaceID][]*evictionQueue) {
		left := slices.DeleteFunc(slices.Clone(all[ns]), func(other *evictionQueue) bool { return other == q })
		if all[ns] = left; len(left) == 0 {
			delete(all, ns)
		}
	})
}

func (t *evictionTap) change(do func(map[kv.NamespaceID][]*evictionQueue)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := maps.Clone(*t.queues.Load())
	do(all)
	t.queues.Store(&all)
}

func (q *evictionQueue) add(tier kv.Tier, h kv.SequenceHash) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.queued >= maxQueuedEvicted {
		q.lost++
		q.tap.lost.Add(1)
		return
	}
	q.byTier[tier] = append(q.byTier[tier], h)
	q.queued++
	select {
	case q.wake <- struct{}{}:
	default: // the sender has been told
	}
}

// take empties the queue.
func (q *evictionQueue) take() (byTier [kv.NumTiers][]kv.SequenceHash, lost uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	byTier, q.byTier, q.queued = q.byTier, [kv.NumTiers][]kv.SequenceHash{}, 0
	return byTier, q.lost
}

// run sends the notices to a scheduler until stop is closed or its connection
// ends.
func (q *evictionQueue) run(c *proto.Conn, stop <-chan struct{}) {
	timer := time.NewTimer(evictedDelay)
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

// send sends what is queued, in as many frames as it takes.
func (q *evictionQueue) send(c *proto.Conn) error {
	byTier, lost := q.take()
	for tier, hashes := range byTier {
		for part := range slices.Chunk(hashes, proto.MaxHashesPerFrame) {
			m := proto.Evicted{Tier: uint8(tier), Hashes: proto.AppendHashes(nil, part), Lost: lost}
			if err := c.Send(proto.TypeEvicted, 0, &m, nil); err != nil {
				return err
			}
			q.tap.told.Add(uint64(len(part)))
		}
	}
	return nil
}
