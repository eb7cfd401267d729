package agent_test

import (
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// Each block that leaves a tier is named, with its tier, to who asked for it in its
// namespace, and to nobody else.
func TestBlocksThatLeaveATierAreToldToWhoAsked(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c, got := a.Listener(t, agenttest.Hello(1))
	other := agenttest.Hello(2)
	other.Namespace.Weights = "other"
	stranger, strangers := a.Listener(t, other)
	silent := a.RawScheduler(t, 3)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 5)
	agenttest.StorePrompt(t, stranger, proto.RequestID{ID: 1}, 1, 2)
	agenttest.Eventually(t, "blocks are sealed", func() bool { return a.Stats().Quiet })
	var want []kv.SequenceHash
	ns := agenttest.Namespace()
	all := a.Manager().Pools()
	pool := all[slices.IndexFunc(all, func(p *blockmgr.Pool) bool { return p.NamespaceID() == ns.ID() })]
	for _, b := range pool.Dump() {
		want = append(want, b.Block.Seq)
	}
	slices.Sort(want)
	if err := pool.Reset(kv.TierHost); err != nil || len(want) != 5 {
		t.Fatalf("%d blocks, error %v", len(want), err)
	}
	agenttest.Eventually(t, "the notices come", func() bool { return slices.Equal(got.Of(kv.TierHost), want) })
	if got.Lost() != 0 || len(strangers.Of(kv.TierHost)) != 0 {
		t.Errorf("%d were lost, and another namespace's engine was told %v", got.Lost(), strangers)
	}
	// A notice is counted when it has been sent, which may be after it has arrived.
	agenttest.Eventually(t, "five notices are counted", func() bool { return a.Stats().Engines.Evicted == 5 })
	agenttest.Send(t, silent, proto.TypeBye, 9, &proto.Bye{}) // who did not ask gets its answer and nothing before it
	if f := agenttest.Receive(t, silent); f.Type != proto.TypeOK {
		t.Errorf("got %s, want OK", f.Type)
	}
}

// What leaves a tier after WELCOME is told: the queue is there before that is sent.
func TestEvictionsRightAfterWelcomeAreQueued(t *testing.T) {
	a := startAgent(t, testConfig(t))
	agenttest.StorePrompt(t, a.Scheduler(t, 2), proto.RequestID{ID: 1}, 1, 3)
	agenttest.Eventually(t, "blocks are sealed", func() bool { return a.Stats().Quiet })
	_, got := a.Listener(t, agenttest.Hello(1))
	agenttest.NoError(t, a.Manager().Pools()[0].Reset(kv.TierHost))
	agenttest.Eventually(t, "all three are told", func() bool { return len(got.Of(kv.TierHost)) == 3 })
}
