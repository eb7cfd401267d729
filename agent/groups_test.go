package agent_test

import (
	"slices"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// hybridNamespace has windows of 6 tokens before full attention, which is group 1, in blocks of one
// page, and states of every second one.
func hybridNamespace() kv.Namespace {
	ns := agenttest.Namespace()
	bytes := ns.BlockBytes()
	ns.Groups = []kv.Group{
		{Kind: "sliding", Window: ns.BlockSize + 2, BlockSize: ns.BlockSize, BlockBytes: bytes / 2, Layers: 1},
		{Kind: "full", BlockSize: ns.BlockSize, BlockBytes: bytes, Layers: 1},
		{Kind: "state", BlockSize: 2 * ns.BlockSize, BlockBytes: bytes / 4, Layers: 1},
	}
	return ns
}

// inGroup names a request for calls about blocks of a KV group.
func inGroup(r proto.RequestID, group uint32) proto.RequestID { r.Group = group; return r }

func TestWholeCycleOfAHybridModelsBlocks(t *testing.T) {
	a := startAgent(t, testConfig(t))
	hello := agenttest.Hello(7)
	hello.Namespace = hybridNamespace()
	page := int(hello.Namespace.BlockSize)
	c := a.Connect(t, hello)
	hello.Session = c.Welcome().Session
	w, err := a.DialWorker(t, hello)
	agenttest.NoError(t, err)
	const blocks = 5
	tokens := agenttest.Prompt(3, blocks)
	r := proto.RequestID{ID: 1}
	agenttest.NoError(t, c.Open(r, "", "", "", tokens))
	fits := func(want int) {
		t.Helper()
		if got, err := c.Fit(t.Context(), r, len(tokens)-1, 0); err != nil || got != want {
			t.Fatalf("%d tokens fit, want %d, error %v", got, want, err)
		}
	}
	store := func(group uint32, first, count int) {
		t.Helper()
		got, err := c.Store(t.Context(), inGroup(r, group), first, count)
		if err != nil || len(got.Grants) != count {
			t.Fatalf("group %d: %+v, %v", group, got, err)
		}
		var slots []proto.Slot
		for i, g := range got.Grants {
			if int(g.Block) != first+i {
				t.Errorf("group %d: grant of block %d, want %d", group, g.Block, first+i)
			}
			slots = append(slots, g.Slot)
		}
		agenttest.NoError(t, c.Commit(t.Context(), r, slots))
	}
	fits(0)
	store(1, 0, blocks)
	store(0, 2, 2)
	fits(0) // no state
	store(2, 1, 1)
	fits(4 * page) // the state ends at block 4, and a window of two blocks is before it

	// The same block in two groups has two slots and two pins.
	full, err := c.Lookup(t.Context(), inGroup(r, 1), 2, 2, 0)
	agenttest.NoError(t, err)
	window, err := c.Lookup(t.Context(), r, 2, 2, 0)
	if err != nil || full.Ready != 2 || window.Ready != 2 || slices.Equal(full.Slots, window.Slots) {
		t.Fatalf("lookups: %+v and %+v, %v", full, window, err)
	}
	if told, err := c.Claim(t.Context(), r, 55, 2, []uint32{10, 11}); err != nil || told != 1 {
		t.Fatalf("claim: %d workers told, error %v", told, err)
	}
	if job := <-w.Loads(); job.Job != 55 || job.Group != 0 || !slices.Equal(job.Slots, window.Slots) {
		t.Errorf("the worker got %+v, want the windows' slots %v", job, window.Slots)
	}
	if _, err := c.Claim(t.Context(), inGroup(r, 2), 56, 1, []uint32{12}); err == nil {
		t.Error("a block that is pinned in no lookup of its group was claimed")
	}
	if told, err := c.Claim(t.Context(), inGroup(r, 1), 57, 3, []uint32{13}); err != nil || told != 1 {
		t.Fatalf("claim: %d workers told, error %v", told, err)
	}
	if job := <-w.Loads(); job.Job != 57 || job.Group != 1 || !slices.Equal(job.Slots, full.Slots[1:]) {
		t.Errorf("the worker got %+v, want the slot %v", job, full.Slots[1])
	}
	agenttest.NoError(t, c.Release(r, 0, blocks)) // the windows' pins alone
	agenttest.Eventually(t, "the windows' pins drop", func() bool { return a.Stats().Pools[0].Pins == 2 })
	agenttest.CloseRequest(t, c, r)
	agenttest.Eventually(t, "the other pins drop", func() bool { return a.Stats().Pools[0].Pins == 0 })
	if n := a.Stats().Engines.Fits; n != 3 {
		t.Errorf("%d FITs, want 3", n)
	}
	agenttest.Bye(t, w)
	agenttest.Bye(t, c)
}

func TestGroupsOutsideTheNamespaceAreRefused(t *testing.T) {
	a := startAgent(t, testConfig(t))
	plain, hybrid := agenttest.Hello(1), agenttest.Hello(2)
	hybrid.Namespace = hybridNamespace()
	for groups, connect := range map[uint32]proto.Hello{1: plain, 3: hybrid} {
		c := a.Connect(t, connect)
		r := proto.RequestID{ID: 1}
		agenttest.Open(t, c, r, 1, 4)
		bad := inGroup(r, groups)
		_, lookupErr := c.Lookup(t.Context(), bad, 0, 1, time.Second)
		_, claimErr := c.Claim(t.Context(), bad, 1, 0, []uint32{1})
		_, storeErr := c.Store(t.Context(), bad, 0, 1)
		for _, err := range []error{lookupErr, claimErr, storeErr} {
			agenttest.WantRefused(t, err, proto.CodeRange)
		}
		last := inGroup(r, groups-1)
		pages := map[uint32]int{1: 1, 3: 2}[groups]
		if got, err := c.Store(t.Context(), last, 0, 4/pages); err != nil || len(got.Grants) != 4/pages {
			t.Errorf("the last group: %+v, %v", got, err)
		}
		_, err := c.Store(t.Context(), last, 0, 4/pages+1)
		agenttest.WantRefused(t, err, proto.CodeRange)
		if n, err := c.Fit(t.Context(), r, proto.MaxTokens, 0); err != nil || n != 0 {
			t.Errorf("%d tokens of nothing fit, %v", n, err)
		}
		agenttest.Bye(t, c)
	}
}
