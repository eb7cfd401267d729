package events

import (
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// A queue that nobody empties holds so much and counts the rest.
func TestNoticesOfEvictionAreBounded(t *testing.T) {
	h := newHub(testOutputs(nil), zap.NewNop())
	ns := kv.NamespaceID{1}
	q := h.ListenEvictions(ns)
	const more = 5
	for i := range maxQueuedEvicted + more {
		h.BlockRemoved(ns, kv.TierDisk, blockmgr.Block{Seq: kv.SequenceHash(i)})
		h.BlockRemoved(kv.NamespaceID{2}, kv.TierDisk, blockmgr.Block{})
	}
	byTier, lost := q.take()
	if n := len(byTier[kv.TierDisk]); n != maxQueuedEvicted || lost != more || h.evictions.lost.Load() != more {
		t.Errorf("%d notices and %d lost, want %d and %d", n, lost, maxQueuedEvicted, more)
	}
	h.BlockRemoved(ns, kv.TierHost, blockmgr.Block{Seq: 7})
	if byTier, lost := q.take(); len(byTier[kv.TierHost]) != 1 || lost != more {
		t.Errorf("after it was emptied the queue had %d, lost %d", len(byTier[kv.TierHost]), lost)
	}
	q.Close()
	h.BlockRemoved(ns, kv.TierHost, blockmgr.Block{Seq: 8})
	if byTier, _ := q.take(); len(byTier[kv.TierHost]) != 0 || len(*h.evictions.queues.Load()) != 0 {
		t.Error("a session that has ended is still told")
	}
}
