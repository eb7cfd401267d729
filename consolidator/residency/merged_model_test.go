package residency

import (
	"maps"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestMergedEqualsTwoSets drives both sources with random changes, and compares what
// the merged stream says with the union of two naive sets of (block, tier).
func TestMergedEqualsTwoSets(t *testing.T) {
	for name, mode := range mergeModes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rapid.Check(timeless{t}, func(rt *rapid.T) { mergedModel(t, rt, mode) })
			})
		})
	}
}

// timeless hides the deadline of a test, which nobody may ask for in a bubble.
type timeless struct{ rapid.TB }

// mergedTwin is the naive twin of a Merged: what each source holds.
type mergedTwin struct {
	own, pool map[residencytest.Pair]struct{}
	joined    bool
	mode      MergeMode
}

func (w *mergedTwin) shown(k residencytest.Pair) residencytest.Pair {
	if w.mode == MergeDedup {
		k.Tier = kv.TierDevice
	}
	return k
}

func (w *mergedTwin) state() map[residencytest.Pair]struct{} {
	set := make(map[residencytest.Pair]struct{})
	for k := range w.own {
		set[w.shown(k)] = struct{}{}
	}
	if w.joined {
		for k := range w.pool {
			set[w.shown(k)] = struct{}{}
		}
	}
	return set
}

// tolerant replays events as a consumer does that took a silent join as it is: what
// it does not know cannot be removed. Silent are the pairs of its set that it was
// never told of, because the pool had them when it was joined.
type tolerant struct {
	t           *testing.T
	last        uint64
	set, silent map[residencytest.Pair]struct{}
}

func (c *tolerant) Publish(events []kvevent.RouterEvent) {
	for i := range events {
		e := &events[i]
		if c.last++; e.ID != c.last || e.Owner != testOwner || e.Kind == kvevent.Cleared {
			c.t.Errorf("event %d of %s, kind %s, after %d", e.ID, e.Owner, e.Kind, c.last-1)
		}
		for _, b := range e.Blocks {
			k := residencytest.Pair{Tier: e.Tier, Hash: b.Hash, Group: e.Group}
			_, there := c.set[k]
			if _, silent := c.silent[k]; there && !silent {
				c.t.Errorf("event %d stores %x in %s again", e.ID, uint64(b.Hash), e.Tier)
			}
			c.set[k] = struct{}{}
			delete(c.silent, k)
		}
		for _, h := range e.Removed {
			delete(c.set, residencytest.Pair{Tier: e.Tier, Hash: h, Group: e.Group})
			delete(c.silent, residencytest.Pair{Tier: e.Tier, Hash: h, Group: e.Group})
		}
	}
}

func mergedModel(t *testing.T, rt *rapid.T, mode MergeMode) {
	consumer := &tolerant{t: t, set: make(map[residencytest.Pair]struct{}), silent: make(map[residencytest.Pair]struct{})}
	tokens := tokens.New(0)
	m := NewMerged(testOwner.Worker(), mode, consumer)
	m.KeepTokens(tokens)
	own, pool := NewStream(testOwner, m.Own()), NewStream(kv.PoolOwner(9), nil)
	twin := &mergedTwin{own: make(map[residencytest.Pair]struct{}), pool: make(map[residencytest.Pair]struct{}), mode: mode}
	tree := residencytest.NewTree(rapid.IntRange(1, 24).Draw(rt, "blocks"), func(i int) int { return rapid.IntRange(-1, i-1).Draw(rt, "parent") })
	// draw picks a source, by whether it is the pool, and a tier of it.
	draw := func(rt *rapid.T) (*Stream, map[residencytest.Pair]struct{}, kv.Tier) {
		tier := rapid.SampledFrom(kv.Tiers[:]).Draw(rt, "tier")
		if rapid.Bool().Draw(rt, "pool") {
			return pool, twin.pool, tier
		}
		return own, twin.own, tier
	}
	rt.Repeat(map[string]func(*rapid.T){
		"store": func(rt *rapid.T) {
			s, set, tier := draw(rt)
			path := tree.Path(rapid.IntRange(0, len(tree.Parent)-1).Draw(rt, "leaf"))
			var told []residencytest.Pair
			for i, b := range path {
				k := residencytest.Pair{Tier: tier, Hash: residencytest.TreeHash(b)}
				if _, there := set[k]; there {
					continue
				}
				set[k] = struct{}{}
				told = append(told, twin.shown(k))
				var parent kv.SequenceHash
				if i > 0 {
					parent = residencytest.TreeHash(path[i-1])
				}
				s.Store(tier, parent, i > 0, uint32(i), []kvevent.StoredBlock{{Hash: k.Hash}})
			}
			s.Flush()
			synctest.Wait()
			for _, k := range told {
				if _, silent := consumer.silent[k]; silent && (s == own || twin.joined) {
					rt.Fatalf("%x is stored in %s, and nobody was told", uint64(k.Hash), k.Tier)
				}
			}
		},
		"remove": func(rt *rapid.T) {
			s, set, tier := draw(rt)
			for _, b := range rapid.SliceOfN(rapid.IntRange(0, len(tree.Parent)-1), 1, 6).Draw(rt, "blocks") {
				delete(set, residencytest.Pair{Tier: tier, Hash: residencytest.TreeHash(b)})
				s.Remove(tier, []kv.SequenceHash{residencytest.TreeHash(b)})
			}
			s.Flush()
		},
		"in group": func(rt *rapid.T) {
			s, set, _ := draw(rt)
			store := rapid.Bool().Draw(rt, "store")
			for _, k := range drawGroupBlocks(rt, tree) {
				_, there := set[k]
				switch {
				case store && !there:
					set[k] = struct{}{}
					s.StoreGroup(k.Tier, k.Group, []kv.SequenceHash{k.Hash})
				case !store:
					delete(set, k)
					s.RemoveGroup(k.Tier, k.Group, []kv.SequenceHash{k.Hash})
				}
			}
			s.Flush()
		},
		"clear": func(rt *rapid.T) {
			s, set, _ := draw(rt)
			if rapid.IntRange(0, 3).Draw(rt, "really") == 0 {
				s.Clear()
				clear(set)
			}
		},
		"join": func(*rapid.T) {
			if !twin.joined {
				before := twin.state()
				join(t, m, pool)
				twin.joined = true
				// Nobody was told of what is new now.
				for k := range twin.state() {
					if _, old := before[k]; !old {
						consumer.set[k], consumer.silent[k] = struct{}{}, struct{}{}
					}
				}
			}
		},
		"": func(rt *rapid.T) {
			synctest.Wait()
			want := twin.state()
			if !maps.Equal(consumer.set, want) {
				rt.Fatalf("events say %d pairs, the twin %d", len(consumer.set), len(want))
			}
			residencytest.Check(t, m.out, want)
			distinct := make(map[kv.SequenceHash]struct{})
			for k := range want {
				if k.Group == 0 { // the others have no tokens of their own
					distinct[k.Hash] = struct{}{}
				}
			}
			if n := tokens.Stats().Retained; n != uint64(len(distinct)) {
				rt.Fatalf("tokens of %d blocks are retained, want %d", n, len(distinct))
			}
		},
	})
	m.Close()
	m.Close()
	if n := tokens.Stats().Retained; n != 0 {
		rt.Fatalf("closed, and tokens of %d blocks are retained", n)
	}
	residencytest.Check(t, m.out, nil)
	if t.Failed() {
		rt.FailNow()
	}
}
