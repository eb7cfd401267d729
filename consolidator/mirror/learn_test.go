package mirror

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// learning is a mirror that learns the groups of its engine, with what it has told.
type learning struct {
	*Cache
	rec     *residencytest.Recorder
	groups  kvgroup.Groups
	problem string
}

func newLearning(t *testing.T) *learning {
	l := &learning{rec: residencytest.NewRecorder(t)}
	l.Cache = New(Config{
		Stream: residency.NewStream(testOwner, l.rec), BlockSize: testBlockSize, MaxBlocks: 1 << 16, Counters: new(Counters),
		Learned: func(groups kvgroup.Groups, problem string) { l.groups, l.problem = slices.Clone(groups), problem },
	})
	return l
}

// groupEvent announces a block at the root in a group of hybridGroups.
func groupEvent(group, block int) engineevent.Event {
	return engineevent.Event{
		Kind: kvevent.Stored, Medium: "GPU", BlockHashes: []kv.EngineHash{engineName(block)}, Tokens: hybridTokens(block),
		BlockSize: hybridGroups[group].BlockSize, Group: int32(group), SpecKind: hybridKinds[group], SlidingWindow: hybridGroups[group].Window,
	}
}

// TestLearntGroupsEqualGivenOnes: once each group has announced a block, the stream holds what the
// engine has in each group, as if the groups had been given.
func TestLearntGroupsEqualGivenOnes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		e := newHybridEngine(rt)
		c := newLearning(t)
		for g := range hybridGroups { // all groups announce block 0 in one step, in any order
			e.step = append(e.step, groupEvent(g, 0))
			e.held[g][engineName(0)]++
		}
		e.step = rapid.Permutation(e.step).Draw(rt, "first")
		rt.Repeat(map[string]func(*rapid.T){
			"store":  func(*rapid.T) { e.store() },
			"again":  func(*rapid.T) { e.again() },
			"remove": func(*rapid.T) { e.remove() },
			"": func(rt *rapid.T) {
				for i := range e.step { // the generator leaves the window out
					if ev := &e.step[i]; ev.SpecKind != "" {
						ev.SlidingWindow = hybridGroups[ev.Group].Window
					}
				}
				c.Apply(&engineevent.Batch{Events: e.step})
				e.step = nil
				c.stream.Flush()
				if want, got := e.resident(), c.rec.Resident(); !maps.Equal(want, got) {
					rt.Fatalf("stream holds %v, want %v", got, want)
				}
				if st := c.stream.Status(); st.Health != kvevent.HealthExact || len(c.count.Dropped()) > 0 {
					rt.Fatalf("health %s, dropped %v", st.Health, c.count.Dropped())
				}
				if !slices.Equal(c.groups, hybridGroups) {
					rt.Fatalf("learnt %+v, want %+v", c.groups, hybridGroups)
				}
			},
		})
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// TestGroupsAreLearntOneByOne: while a number below the highest one is missing, the primary group
// alone is kept and the stream is degraded. Blocks that were left out until then keep it degraded
// until the engine clears its cache. A restart of the engine forgets the groups.
func TestGroupsAreLearntOneByOne(t *testing.T) {
	c := newLearning(t)
	check := func(step string, blocks, groupBlocks uint64, groups int, health kvevent.Health) {
		t.Helper()
		if st := c.stream.Status(); st.Blocks != blocks || st.GroupBlocks != groupBlocks || st.Health != health || len(c.groups) != groups || c.problem != "" {
			t.Fatalf("%s: %+v, %d groups, problem %q; want %d blocks, %d of groups, %d groups, %s",
				step, st, len(c.groups), c.problem, blocks, groupBlocks, groups, health)
		}
	}
	c.Apply(batch(groupEvent(1, 0), groupEvent(1, 1)))
	check("the primary group", 2, 0, 0, kvevent.HealthDegraded)
	c.Apply(batch(groupEvent(2, 0)))
	check("a state, dropped", 2, 0, 0, kvevent.HealthDegraded)
	c.Apply(batch(groupEvent(0, 0)))
	check("the window before them", 2, 1, 3, kvevent.HealthDegraded)
	c.Apply(batch(engineevent.Event{Kind: kvevent.Cleared, Group: engineevent.NoGroup}))
	check("cleared", 0, 0, 3, kvevent.HealthExact)
	c.Apply(batch(groupEvent(0, 0), groupEvent(1, 0), groupEvent(2, 0)))
	check("stored again", 1, 2, 3, kvevent.HealthExact)
	c.Restarted()
	check("restarted", 0, 0, 0, kvevent.HealthExact)
	c.Apply(batch(engineevent.Event{
		Kind: kvevent.Stored, Medium: "GPU", BlockHashes: []kv.EngineHash{1}, Tokens: hybridTokens(0), BlockSize: testBlockSize,
		Group: 0, SpecKind: "full_attention",
	}))
	check("a model with one group", 1, 0, 0, kvevent.HealthExact)
}

// TestGroupsThatCannotBeLearnt: the primary group counts alone, degraded, and the reason is told.
func TestGroupsThatCannotBeLearnt(t *testing.T) {
	chunked := groupEvent(0, 0)
	chunked.SpecKind, chunked.SlidingWindow = "chunked_local_attention", 0
	large := groupEvent(1, 0)
	large.BlockSize, large.Tokens = 2*testBlockSize, append(hybridTokens(0), hybridTokens(1)...)
	for name, test := range map[string]struct {
		events []engineevent.Event
		blocks uint64
		want   string
	}{
		"events do not tell the size of a chunk": {[]engineevent.Event{chunked, groupEvent(1, 0)}, 1,
			`groups[0] kind: "chunked_local_attention", want "full", "sliding", "chunked" or "state"`},
		"the primary group has larger blocks": {[]engineevent.Event{groupEvent(0, 0), large}, 0,
			"groups[1] block_size: 8 tokens, want 4 as the router's blocks have"},
	} {
		c := newLearning(t)
		c.Apply(batch(test.events...))
		if st := c.stream.Status(); st.Blocks != test.blocks || st.GroupBlocks != 0 || st.Health != kvevent.HealthDegraded || len(c.groups) != 0 {
			t.Errorf("%s: %+v, groups %+v; want %d blocks, degraded, no groups", name, st, c.groups, test.blocks)
		}
		if c.problem != test.want {
			t.Errorf("%s: problem %q, want %q", name, c.problem, test.want)
		}
	}
}

// TestALargerPrimaryBlockIsDegraded: blocks of full attention that span several blocks of the stream
// have no name, which the stream's health says.
func TestALargerPrimaryBlockIsDegraded(t *testing.T) {
	c := New(Config{
		Stream: residency.NewStream(testOwner, nil), BlockSize: testBlockSize, MaxBlocks: 16, Counters: new(Counters),
		Groups: kvgroup.Groups{{Kind: kvgroup.Full, BlockSize: 2 * testBlockSize}, {Kind: kvgroup.State, BlockSize: testBlockSize}},
	})
	large := groupEvent(1, 0)
	large.Group, large.BlockSize, large.Tokens = 0, 2*testBlockSize, append(hybridTokens(0), hybridTokens(1)...)
	for range 2 {
		c.Apply(batch(large))
		if st := c.stream.Status(); st.Blocks != 0 || st.Health != kvevent.HealthDegraded || c.count.Dropped()["block_size"] == 0 {
			t.Errorf("%+v, dropped %v; want no blocks, degraded", st, c.count.Dropped())
		}
		c.Restarted()
	}
}
