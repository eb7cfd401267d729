package mirror

import (
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/consolidator/checkpoint"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/consolidator/sequence"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// hybridGroups are those of an engine whose group 0 is a window and whose group 1 is the primary
// one, as vLLM orders them for Gemma 3.
var hybridGroups = kvgroup.Groups{
	{Kind: kvgroup.Sliding, Window: 8, BlockSize: testBlockSize},
	{Kind: kvgroup.Full, BlockSize: testBlockSize},
	{Kind: kvgroup.State, BlockSize: 2 * testBlockSize},
}

// hybridNumbers are the numbers of hybridGroups in our events.
var hybridNumbers = []uint32{1, 0, 2}

var hybridKinds = []string{"sliding_window", "full_attention", "mamba"}

// hybridEngine announces its blocks as vLLM's block pool does.
type hybridEngine struct {
	rt   *rapid.T
	tree *residencytest.Tree
	// held counts the copies of each block by the engine's group.
	held []map[kv.EngineHash]int
	step []engineevent.Event
}

func newHybridEngine(rt *rapid.T) *hybridEngine {
	e := &hybridEngine{rt: rt}
	e.tree = residencytest.NewTree(rapid.IntRange(1, 16).Draw(rt, "blocks"), func(i int) int { return rapid.IntRange(-1, i-1).Draw(rt, "parent") })
	for range hybridGroups {
		e.held = append(e.held, make(map[kv.EngineHash]int))
	}
	return e
}

// seqOf returns the name of a block in our events.
func (e *hybridEngine) seqOf(block int) (seq kv.SequenceHash) {
	var hasher kv.Hasher
	for i, b := range e.tree.Path(block) {
		local := hasher.Local(hybridTokens(b), kv.HashSeed, nil)
		if i == 0 {
			seq = kv.SequenceHash(local)
		} else {
			seq = kv.Chain(seq, local)
		}
	}
	return seq
}

func hybridTokens(block int) (tokens []uint32) {
	for j := range testBlockSize {
		tokens = append(tokens, uint32(block*testBlockSize+j))
	}
	return tokens
}

// store announces the blocks down to a leaf in every group, the groups in any order. Groups other
// than the primary one leave blocks out.
func (e *hybridEngine) store() {
	path := e.tree.Path(rapid.IntRange(0, len(e.tree.Parent)-1).Draw(e.rt, "leaf"))
	skip := 0
	for skip < len(path) && e.held[1][engineName(path[skip])] > 0 {
		skip++
	}
	for _, g := range rapid.Permutation([]int{0, 1, 2}).Draw(e.rt, "order") {
		ev := engineevent.Event{
			Kind: kvevent.Stored, BlockSize: testBlockSize, Medium: "GPU", Group: int32(g), SpecKind: hybridKinds[g],
		}
		if skip > 0 {
			ev.Parent, ev.HasParent = engineName(path[skip-1]), true
		}
		for _, b := range path[skip:] {
			ev.Tokens = append(ev.Tokens, hybridTokens(b)...) // those of left out blocks too
			if g == 1 || rapid.Bool().Draw(e.rt, "cached") {
				ev.BlockHashes = append(ev.BlockHashes, engineName(b))
				e.held[g][engineName(b)]++
			}
		}
		if len(ev.BlockHashes) > 0 {
			e.step = append(e.step, ev)
		}
	}
}

// again announces a block that the primary group has once more in another group: a second copy.
func (e *hybridEngine) again() {
	g := rapid.SampledFrom([]int{0, 2}).Draw(e.rt, "group")
	for b := range e.tree.Parent {
		h := engineName(b)
		if e.held[1][h] == 0 || rapid.Bool().Draw(e.rt, "other") {
			continue
		}
		e.held[g][h]++
		e.step = append(e.step, engineevent.Event{
			Kind: kvevent.Stored, BlockSize: hybridGroups[g].BlockSize, Medium: "GPU", Group: int32(g), SpecKind: hybridKinds[g],
			BlockHashes: []kv.EngineHash{h}, Tokens: hybridTokens(b), Parent: 999, HasParent: true,
		})
		return
	}
}

// remove evicts one copy. The removal names no kind.
func (e *hybridEngine) remove() {
	g := rapid.IntRange(0, 2).Draw(e.rt, "group")
	for b := range e.tree.Parent {
		h := engineName(b)
		if e.held[g][h] == 0 || rapid.Bool().Draw(e.rt, "keep") {
			continue
		}
		if e.held[g][h]--; e.held[g][h] == 0 {
			delete(e.held[g], h)
		}
		e.step = append(e.step, engineevent.Event{Kind: kvevent.Removed, Medium: "GPU", Group: int32(g), BlockHashes: []kv.EngineHash{h}})
		return
	}
}

func (e *hybridEngine) clear() {
	for _, held := range e.held {
		clear(held)
	}
	e.step = append(e.step, engineevent.Event{Kind: kvevent.Cleared, Group: engineevent.NoGroup})
}

// resident returns what the stream must hold.
func (e *hybridEngine) resident() map[residencytest.Pair]struct{} {
	set := make(map[residencytest.Pair]struct{})
	for g, held := range e.held {
		for b := range e.tree.Parent {
			if held[engineName(b)] > 0 {
				set[residencytest.Pair{Tier: kv.TierDevice, Hash: e.seqOf(b), Group: hybridNumbers[g]}] = struct{}{}
			}
		}
	}
	return set
}

func newHybridCache(rec residency.Sink) *Cache {
	return New(Config{
		Stream: residency.NewStream(testOwner, rec), BlockSize: testBlockSize, MaxBlocks: 1 << 16, Groups: hybridGroups, Counters: new(Counters),
	})
}

// TestTheStreamHoldsWhatEachGroupHolds plays a hybrid engine and compares the stream with what the
// engine has in each group after every batch, and after checkpoints. The last block of a chain may
// be evicted from the primary group while a window still has it.
func TestTheStreamHoldsWhatEachGroupHolds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		e := newHybridEngine(rt)
		rec := residencytest.NewRecorder(t)
		c := newHybridCache(rec)
		rt.Repeat(map[string]func(*rapid.T){
			"store":  func(*rapid.T) { e.store() },
			"again":  func(*rapid.T) { e.again() },
			"remove": func(*rapid.T) { e.remove() },
			"clear": func(rt *rapid.T) {
				if rapid.IntRange(0, 5).Draw(rt, "really") == 0 {
					e.clear()
				}
			},
			"restore": func(rt *rapid.T) {
				ck, err := checkpoint.Parse(c.encoded(sequence.State{}), testCheckpoint)
				if err != nil {
					rt.Fatal(err)
				}
				rec = residencytest.NewRecorder(t)
				c = newHybridCache(rec)
				c.Restore(ck)
				c.Confirmed()
			},
			"": func(rt *rapid.T) {
				c.Apply(&engineevent.Batch{Events: e.step})
				e.step = nil
				c.stream.Flush()
				if want, got := e.resident(), rec.Resident(); !maps.Equal(want, got) {
					rt.Fatalf("stream holds %v, want %v", got, want)
				}
				residencytest.Check(t, c.stream, rec.Resident())
				if st := c.stream.Status(); st.Health != kvevent.HealthExact || len(c.count.Dropped()) > 0 || c.sparse.waits > 0 {
					rt.Fatalf("health %s, dropped %v, %d wait", st.Health, c.count.Dropped(), c.sparse.waits)
				}
			},
		})
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// windowEvent announces block 1 in the window, as a full report does with tokens that add up.
func windowEvent(kind kvevent.Kind) engineevent.Event {
	e := engineevent.Event{Kind: kind, Medium: "GPU", BlockHashes: []kv.EngineHash{engineName(0)}}
	if kind == kvevent.Stored {
		e.BlockSize, e.Tokens, e.SpecKind = testBlockSize, hybridTokens(0), hybridKinds[0]
	}
	return e
}

func primaryEvent() engineevent.Event {
	e := windowEvent(kvevent.Stored)
	e.Group, e.SpecKind = 1, hybridKinds[1]
	return e
}

func batch(events ...engineevent.Event) *engineevent.Batch { return &engineevent.Batch{Events: events} }

// TestAWindowWaitsForThePrimaryGroup: a block of a group has no name before the primary group's, and
// a stream that lacks it for a second is degraded. A checkpoint keeps it.
func TestAWindowWaitsForThePrimaryGroup(t *testing.T) {
	now := time.Unix(1000, 0)
	open := func() (*Cache, *residencytest.Recorder) {
		rec := residencytest.NewRecorder(t)
		c := newHybridCache(rec)
		c.cfg.Now = func() time.Time { return now }
		return c, rec
	}
	c, _ := open()
	c.Apply(batch(windowEvent(kvevent.Stored)))
	if st := c.stream.Status(); st.GroupBlocks != 0 || st.Health != kvevent.HealthExact {
		t.Errorf("at first %+v", st)
	}
	now = c.Wake()
	c.Tick()
	if st := c.stream.Status(); st.Health != kvevent.HealthDegraded {
		t.Errorf("after %v: %+v, want degraded", parkPatience, st)
	}
	ck, err := checkpoint.Parse(c.encoded(sequence.State{}), testCheckpoint)
	if err != nil {
		t.Fatal(err)
	}
	restored, rec := open()
	restored.Restore(ck)
	restored.Apply(batch(primaryEvent()))
	restored.stream.Flush()
	if st := restored.stream.Status(); st.Blocks != 1 || st.GroupBlocks != 1 || st.Health != kvevent.HealthExact {
		t.Errorf("with the primary block %+v", st)
	}
	residencytest.Check(t, restored.stream, rec.Resident())
	c.Apply(batch(windowEvent(kvevent.Removed), primaryEvent()))
	if st := c.stream.Status(); st.Blocks != 1 || st.GroupBlocks != 0 || st.Health != kvevent.HealthExact {
		t.Errorf("removed while it waited: %+v", st)
	}
}

// TestGroupsAreNeverCreditedTooMuch: what a list or a report says of no group in particular adds
// nothing to a group.
func TestGroupsAreNeverCreditedTooMuch(t *testing.T) {
	c := newHybridCache(residencytest.NewRecorder(t))
	c.cfg.FullReports = true
	c.Apply(batch(primaryEvent(), windowEvent(kvevent.Stored)))
	if st := c.stream.Status(); st.GroupBlocks != 0 || c.count.Dropped()["group_report"] != 1 {
		t.Errorf("a report: %+v, dropped %v", st, c.count.Dropped())
	}
	c = newHybridCache(residencytest.NewRecorder(t))
	c.cfg.CanList = true
	c.Apply(batch(primaryEvent(), windowEvent(kvevent.Stored)))
	for name, lose := range map[string]func(){
		"a list":              func() { c.Listed([]kv.EngineHash{engineName(0)}) },
		"hidden, then a list": func() { c.Hide(); c.Listed([]kv.EngineHash{engineName(0)}) },
	} {
		lose()
		if st := c.stream.Status(); st.Blocks != 1 || st.GroupBlocks != 0 || st.Health != kvevent.HealthDegraded {
			t.Errorf("%s: %+v, want the primary block alone, degraded", name, st)
		}
		c.Apply(batch(engineevent.Event{Kind: kvevent.Cleared, Group: engineevent.NoGroup}))
		if st := c.stream.Status(); st.Blocks+st.GroupBlocks != 0 || st.Health != kvevent.HealthExact {
			t.Errorf("%s, then a clear: %+v", name, st)
		}
		c.Apply(batch(primaryEvent(), windowEvent(kvevent.Stored)))
	}
	wrong := windowEvent(kvevent.Stored)
	wrong.Group, wrong.SpecKind = 0, "full_attention"
	unknown := windowEvent(kvevent.Stored)
	unknown.Group = 7
	c.Apply(batch(wrong, unknown))
	if got := c.count.Dropped()["group"]; got != 2 {
		t.Errorf("%d blocks of groups that the engine does not have are dropped, want 2", got)
	}
}
