package engine

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// hybridOptions are those of an engine whose model has a window of 7 tokens, which lie in at most three
// blocks, beside full attention.
func hybridOptions(t *testing.T, blocks int) Options {
	o := testOptions(blocks)
	block := kv.Group{BlockSize: o.Namespace.BlockSize, BlockBytes: o.Namespace.BlockBytes(), Layers: 2}
	sliding, full := block, block
	sliding.Kind, sliding.Window, full.Kind = "sliding", 7, "full"
	o.Namespace.Groups = []kv.Group{sliding, full}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	return o
}

// hybridAgent returns an agent without blocks for engines of o.
func hybridAgent(o *Options) *fakeAgent {
	agent := newFakeAgent(testNaming(), int(o.Namespace.BlockBytes()))
	agent.groups = o.Namespace.KVGroups()
	return agent
}

// filledHybridAgent returns an agent to which an engine has stored a conversation of 17 tokens and 9 of
// output, and the tokens of its next turn.
func filledHybridAgent(t *testing.T) (*fakeAgent, []uint32) {
	t.Helper()
	o := hybridOptions(t, 64)
	agent := hybridAgent(&o)
	e := newTestEngine(o, agent)
	stop := e.start(t)
	_, output, err := result(e.generate(prompt17(), 9))
	if err != nil {
		t.Fatal(err)
	}
	e.checkSettled(t, agent)
	stopCoreOnly(e, stop)
	return agent, append(prompt17(), append(output, tokenRun(700, 3)...)...)
}

// findable returns how many leading blocks of a prompt the device of a hybrid engine has: all of
// them in full attention, and those of the window before their end. full counts those of full
// attention alone.
func (e *testEngine) findable(prompt []uint32) (blocks, full int) {
	size := e.naming.blockSize
	ids := newSequence(e.naming, prompt).ids
	needed := (int(e.pool.groups[window].Window) - 1 + size - 1) / size
	for n := 1; n <= (len(prompt)-1)/size; n++ {
		if _, ok := e.pool.cached[cacheKey{ids[n-1].engine, e.pool.full()}]; !ok {
			break
		}
		full = n
		whole := true
		for i := max(0, n-needed); i < n; i++ {
			_, ok := e.pool.cached[cacheKey{ids[i].engine, window}]
			whole = whole && ok
		}
		if whole {
			blocks = n
		}
	}
	return blocks, full
}

// TestAHybridEngineFindsWhatBothGroupsHave: requests with common prefixes on a small device, one
// after the other and side by side. What one finds on the device is what a search over all lengths
// finds, and the events tell of each block of each group.
func TestAHybridEngineFindsWhatBothGroupsHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEngine(hybridOptions(t, 40), nil)
		defer e.start(t)()
		random := rand.New(rand.NewPCG(1, 2))
		found, partial := 0, 0
		for i := range 300 {
			prompt := append(tokenRun(1000*random.IntN(4), 4*random.IntN(7)), tokenRun(5000+random.IntN(3), 1+random.IntN(20))...)
			if i%5 == 0 { // side by side: two copies, and preemption
				other := e.generate(prompt, 30)
				result(e.generate(tokenRun(9000+i, 30), 20))
				result(other)
				continue
			}
			var want, full int
			e.ask(func() { want, full = e.findable(prompt) })
			served, _, err := result(e.generate(prompt, 1+random.IntN(12)))
			if err != nil || served.Device != want*e.naming.blockSize {
				t.Fatalf("request %d: served %+v (%v), want %d blocks from the device", i, served, err, want)
			}
			if want > 0 {
				found++
			}
			if full > want {
				partial++
			}
		}
		if found < 20 || partial < 20 {
			t.Errorf("%d requests found blocks, %d less than full attention has: the test shows nothing", found, partial)
		}
		e.checkSettled(t, nil)
	})
}

// stored asks the engine's agent as POST /v1/cached does.
func (e *testEngine) stored(prompt []uint32) fitted {
	answer := make(chan fitted, 1)
	e.ask(func() { e.askStored(&request{seq: newSequence(e.naming, prompt)}, answer) })
	return <-answer
}

// TestAnotherEngineLoadsTheNextTurn: the last window of a request is stored, and the next turn loads
// the prefix of full attention and that window alone.
func TestAnotherEngineLoadsTheNextTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent, turn := filledHybridAgent(t)
		e := newTestEngine(hybridOptions(t, 64), agent)
		defer e.start(t)()
		if got := e.stored(turn); got.blocks != 6 || got.err != nil {
			t.Errorf("FIT finds %+v, want 6 blocks", got)
		}
		served, _, err := result(e.generate(turn, 1))
		if want := (Served{Host: 24, Recomputed: len(turn) - 24}); err != nil || served != want {
			t.Errorf("served %+v (%v), want %+v", served, err, want)
		}
		e.checkSettled(t, agent)
		// 25 tokens were computed, the last one sampled: six blocks, and two of the window.
		if s := e.counts.snapshot(); s.BlocksLoaded != 6+2 || s.BlocksVerified != 6+2 || s.WrongBytes != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestAWrongByteInTheWindowFailsTheLoad: nothing of the prefix is used, in either group.
func TestAWrongByteInTheWindowFailsTheLoad(t *testing.T) {
	for _, group := range []uint32{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			agent, turn := filledHybridAgent(t)
			agent.flip(newSequence(testNaming(), turn).ids[5].key.InGroup(group), 3)
			e := newTestEngine(hybridOptions(t, 64), agent)
			defer e.start(t)()
			served, _, err := result(e.generate(turn, 5))
			if want := (Served{Recomputed: len(turn)}); err != nil || served != want {
				t.Errorf("group %d: served %+v (%v), want %+v", group, served, err, want)
			}
			e.checkSettled(t, agent) // compares every byte on the device
			if s := e.counts.snapshot(); s.WrongBytes != 1 || s.LoadsFailed != 6+2 || s.BlocksLoaded != 0 {
				t.Errorf("group %d: %+v", group, s)
			}
		})
	}
}

// TestABlockThatLeavesAfterFIT: the prefix is asked for again, and not for ever.
func TestABlockThatLeavesAfterFIT(t *testing.T) {
	for evictions, want := range map[int]Served{
		1: {Host: 20, Recomputed: 9}, // the windows of prompt and answer are side by side
		9: {Recomputed: 29},
	} {
		synctest.Test(t, func(t *testing.T) {
			agent, turn := filledHybridAgent(t)
			agent.evictAfter = evictions
			e := newTestEngine(hybridOptions(t, 64), agent)
			defer e.start(t)()
			served, _, err := result(e.generate(turn, 1))
			if err != nil || served != want {
				t.Errorf("%d evictions: served %+v (%v), want %+v", evictions, served, err, want)
			}
			if n := e.counts.snapshot().Fits; n > maxFits {
				t.Errorf("%d evictions: %d FITs", evictions, n)
			}
			e.checkSettled(t, agent)
		})
	}
}

// TestRandomHybridWorkloads drives an engine of a hybrid model and its agent through random
// conversations on a small device. The agent loses blocks, connections end, requests are aborted. A request that
// is alone is served what the device has and then what the agent has.
func TestRandomHybridWorkloads(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		blocks := rapid.IntRange(24, 60).Draw(rt, "blocks")
		type op struct {
			alone, abort, evict, reset bool
			prefix, length, out        int
		}
		ops := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) op {
			return op{
				alone: rapid.IntRange(0, 3).Draw(t, "alone") > 0, abort: rapid.IntRange(0, 9).Draw(t, "abort") == 0,
				evict: rapid.IntRange(0, 3).Draw(t, "evict") == 0, reset: rapid.IntRange(0, 3).Draw(t, "reset") == 0,
				prefix: rapid.IntRange(0, 2).Draw(t, "prefix"), length: rapid.IntRange(1, 24).Draw(t, "length"), out: rapid.IntRange(1, 16).Draw(t, "out"),
			}
		}), 1, 14).Draw(rt, "ops")
		seed := rapid.Uint64().Draw(rt, "seed")
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			o := hybridOptions(t, blocks)
			agent := hybridAgent(&o)
			e := newTestEngine(o, agent)
			defer e.start(t)()
			history := map[int][]uint32{}
			for i, op := range ops {
				prompt := append(append([]uint32(nil), history[op.prefix]...), tokenRun(1000*op.prefix, op.length)...)
				if len(prompt)+max(op.out, 3) > blocks/2*e.naming.blockSize {
					prompt = tokenRun(1000*op.prefix, op.length)
				}
				if op.evict {
					agent.evictOne(random)
				}
				if op.reset {
					e.post(func() { e.reset() })
				}
				if !op.alone { // side by side: preemption, equal blocks, aborts
					other, r := e.generate(prompt, op.out), e.generate(prompt, 3)
					if op.abort {
						<-time.After(time.Duration(i) * time.Millisecond)
						e.post(func() { e.abort(r) })
					}
					_, _, err := result(other)
					if _, _, err2 := result(r); err != nil || err2 != nil && !op.abort {
						rt.Errorf("op %d of %+v: %v, %v", i, ops, err, err2)
					}
					continue
				}
				e.checkSettled(t, agent)
				var local int
				e.ask(func() { local, _ = e.findable(prompt) })
				stored := e.stored(prompt)
				served, output, err := result(e.generate(prompt, op.out))
				size := e.naming.blockSize
				want := Served{Device: local * size, Host: max(stored.blocks-local, 0) * size}
				want.Recomputed = len(prompt) - want.Device - want.Host
				if err != nil || stored.err != nil || served != want {
					rt.Errorf("op %d of %+v: served %+v (%v), want %+v", i, ops, served, err, want)
				}
				history[op.prefix] = append(prompt, output...)
			}
			e.checkSettled(t, agent)
			if n := e.counts.snapshot().WrongBytes + e.counts.snapshot().LoadsFailed + e.counts.snapshot().StoresFailed; n > 0 {
				rt.Errorf("wrong bytes or failures with a well-behaved agent: %+v", e.counts.snapshot())
			}
		})
	})
}

// TestAnAgentWithoutGroupsIsLeft: an agent before protocol 1.4 would give a window's block for one of
// full attention.
func TestAnAgentWithoutGroupsIsLeft(t *testing.T) {
	hybrid, plain := hybridOptions(t, 64), testOptions(64)
	for _, o := range []*Options{&hybrid, &plain} {
		s := newSession(o, hello(o, 1, "", ""), device{}, nil, new(counters))
		id := o.Namespace.ID()
		w := proto.Welcome{Minor: 3, NamespaceID: id[:], BlockBytes: o.Namespace.BlockBytes()}
		if err := s.check(&w); (err != nil) != (o == &hybrid) {
			t.Errorf("groups %v: %v", o.Namespace.Groups, err)
		}
		if w.Minor = proto.VersionMinor; s.check(&w) != nil {
			t.Errorf("groups %v: refused with minor %d", o.Namespace.Groups, w.Minor)
		}
	}
}
