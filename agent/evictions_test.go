package agent

import (
	"slices"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// evictedNotices gathers what a scheduler is told.
type evictedNotices struct {
	mu     sync.Mutex
	byTier map[kv.Tier][]kv.SequenceHash
	lost   uint64
}

func (e *evictedNotices) note(t kv.Tier, hashes []kv.SequenceHash, lost uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.byTier == nil {
		e.byTier = map[kv.Tier][]kv.SequenceHash{}
	}
	e.byTier[t] = append(e.byTier[t], hashes...)
	e.lost = lost
}

func (e *evictedNotices) sorted(t kv.Tier) []kv.SequenceHash {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(slices.Values(e.byTier[t]))
}

// listener is a scheduler that asks for EVICTED.
func (a *testAgent) listener(t *testing.T, h proto.Hello) (*proto.SchedulerClient, *evictedNotices) {
	t.Helper()
	got := new(evictedNotices)
	c, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: a.cfg.Socket, Hello: h, Evicted: got.note})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, got
}

// Each block that leaves a tier is named, with its tier, to who asked for it in its
// namespace, and to nobody else.
func TestBlocksThatLeaveATierAreToldToWhoAsked(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c, got := a.listener(t, helloOf(1))
	other := helloOf(2)
	other.Namespace.Weights = "other"
	stranger, strangers := a.listener(t, other)
	silent := a.rawScheduler(t, 3)
	storePrompt(t, c, proto.RequestID{ID: 1}, 1, 5)
	storePrompt(t, stranger, proto.RequestID{ID: 1}, 1, 2)
	eventually(t, "blocks are sealed", func() bool { return a.Stats().Quiet })
	var want []kv.SequenceHash
	pool, err := a.findPool(testNamespaceID())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range pool.Dump() {
		want = append(want, b.Block.Seq)
	}
	slices.Sort(want)
	if err := pool.Reset(kv.TierHost); err != nil || len(want) != 5 {
		t.Fatalf("%d blocks, error %v", len(want), err)
	}
	eventually(t, "the notices come", func() bool { return slices.Equal(got.sorted(kv.TierHost), want) })
	if got.lost != 0 || len(strangers.sorted(kv.TierHost)) != 0 {
		t.Errorf("%d were lost, and another namespace's engine was told %v", got.lost, strangers.byTier)
	}
	// A notice is counted when it has been sent, which may be after it has arrived.
	eventually(t, "five notices are counted", func() bool { return a.Stats().Engines.Evicted == 5 })
	send(t, silent, proto.TypeBye, 9, &proto.Bye{}) // who did not ask gets its answer and nothing before it
	if f := receive(t, silent); f.Type != proto.TypeOK {
		t.Errorf("got %s, want OK", f.Type)
	}
}

// A queue that nobody empties holds so much and counts the rest.
func TestNoticesOfEvictionAreBounded(t *testing.T) {
	tap := newEvictionTap(nullSink{})
	ns := kv.NamespaceID{1}
	q := tap.listen(ns)
	const more = 5
	for i := range maxQueuedEvicted + more {
		tap.BlockRemoved(ns, kv.TierDisk, blockmgr.Block{Seq: kv.SequenceHash(i)})
		tap.BlockRemoved(kv.NamespaceID{2}, kv.TierDisk, blockmgr.Block{})
	}
	byTier, lost := q.take()
	if n := len(byTier[kv.TierDisk]); n != maxQueuedEvicted || lost != more || tap.lost.Load() != more {
		t.Errorf("%d notices and %d lost, want %d and %d", n, lost, maxQueuedEvicted, more)
	}
	tap.BlockRemoved(ns, kv.TierHost, blockmgr.Block{Seq: 7})
	if byTier, lost := q.take(); len(byTier[kv.TierHost]) != 1 || lost != more {
		t.Errorf("after it was emptied the queue had %d, lost %d", len(byTier[kv.TierHost]), lost)
	}
	tap.ignore(ns, q)
	tap.BlockRemoved(ns, kv.TierHost, blockmgr.Block{Seq: 8})
	if byTier, _ := q.take(); len(byTier[kv.TierHost]) != 0 || len(*tap.queues.Load()) != 0 {
		t.Error("a session that has ended is still told")
	}
}

// nullSink takes events and forgets them.
type nullSink struct{}

func (nullSink) BlockStored(kv.NamespaceID, kv.Tier, blockmgr.Block)  {}
func (nullSink) BlockRemoved(kv.NamespaceID, kv.Tier, blockmgr.Block) {}

// What leaves a tier after WELCOME is told: the queue is there before that is sent.
func TestEvictionsRightAfterWelcomeAreQueued(t *testing.T) {
	a := startAgent(t, testConfig(t))
	h := helloOf(1)
	h.Major, h.Role, h.WantEvicted = proto.VersionMajor, string(proto.RoleScheduler), true
	c := a.raw(t)
	send(t, c, proto.TypeHello, 1, &h)
	receive(t, c)
	if n := len(*a.evicted.queues.Load()); n != 1 {
		t.Errorf("%d queues at WELCOME, want 1", n)
	}
	send(t, c, proto.TypeBye, 2, &proto.Bye{})
	receive(t, c)
	wantClosed(t, c)
	if n := len(*a.evicted.queues.Load()); n != 0 {
		t.Errorf("%d queues are left", n)
	}
}
