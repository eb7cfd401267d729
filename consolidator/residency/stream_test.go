package residency

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

var testOwner = kv.WorkerOwner(kv.Worker{ID: 7})

func TestStreamScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		rec := residencytest.NewRecorder(t)
		s := NewStream(testOwner, rec)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "store":
				storeFromScript(t, s, d)
			case "remove":
				s.Remove(scriptTier(t, d), scriptHashes(t, d, "hashes"))
			case "clear":
				s.Clear()
			case "flush":
				s.Flush()
			case "snapshot":
				events, last, _ := s.Snapshot()
				out := rec.Take() + fmt.Sprintf("after %d:\n", last)
				for i := range events {
					out += residencytest.Format(&events[i])
				}
				return out
			case "status":
				st := s.Status()
				residencytest.Check(t, s, rec.Resident())
				return rec.Take() + fmt.Sprintf("last=%d blocks=%d health=%s unknown_removes=%d inline=%d\n",
					st.LastEventID, st.Blocks, st.Health, s.Stats().UnknownRemoves, s.Stats().InlineFlushes)
			default:
				d.Fatalf(t, "unknown command")
			}
			return rec.Take()
		})
	})
}

// storeFromScript reads "store tier=device parent=1 start=1 hashes=(2,3)" or
// count=N in place of hashes.
func storeFromScript(t *testing.T, s *Stream, d *datadriven.TestData) {
	var blocks []kvevent.StoredBlock
	for _, h := range scriptHashes(t, d, "hashes") {
		blocks = append(blocks, kvevent.StoredBlock{Hash: h, Local: kv.LocalHash(h)})
	}
	if d.HasArg("count") {
		var n, from int
		d.ScanArgs(t, "count", &n)
		d.ScanArgs(t, "from", &from)
		for i := range n {
			blocks = append(blocks, kvevent.StoredBlock{Hash: kv.SequenceHash(from + i)})
		}
	}
	parents := scriptHashes(t, d, "parent")
	var parent kv.SequenceHash
	if len(parents) > 0 {
		parent = parents[0]
	}
	start := 0
	d.MaybeScanArgs(t, "start", &start)
	s.Store(scriptTier(t, d), parent, len(parents) > 0, uint32(start), blocks)
}

func scriptTier(t *testing.T, d *datadriven.TestData) kv.Tier {
	name := "device"
	d.MaybeScanArgs(t, "tier", &name)
	tier, err := kv.ParseTier(name)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return tier
}

func scriptHashes(t *testing.T, d *datadriven.TestData, arg string) []kv.SequenceHash {
	var out []kv.SequenceHash
	for _, a := range d.CmdArgs {
		if a.Key != arg {
			continue
		}
		for _, v := range a.Vals {
			n, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			out = append(out, kv.SequenceHash(n))
		}
	}
	return out
}

// TestStreamEqualsMultiset drives a stream and a naive multiset with the same
// random changes: what the events say, what Snapshot says and what the digest
// covers must be the set of pairs with a count above zero.
func TestStreamEqualsMultiset(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rec := residencytest.NewRecorder(t)
		s := NewStream(testOwner, rec)
		model := make(map[residencytest.Pair]int)
		tree := residencytest.NewTree(rapid.IntRange(1, 40).Draw(rt, "blocks"), func(i int) int { return rapid.IntRange(-1, i-1).Draw(rt, "parent") })
		tiers := rapid.SampledFrom(kv.Tiers[:])
		rt.Repeat(map[string]func(*rapid.T){
			"store": func(rt *rapid.T) {
				tier := tiers.Draw(rt, "tier")
				path := tree.Path(rapid.IntRange(0, len(tree.Parent)-1).Draw(rt, "leaf"))
				skip := rapid.IntRange(0, len(path)-1).Draw(rt, "skip")
				var blocks []kvevent.StoredBlock
				for _, b := range path[skip:] {
					blocks = append(blocks, kvevent.StoredBlock{Hash: residencytest.TreeHash(b)})
					model[residencytest.Pair{Tier: tier, Hash: residencytest.TreeHash(b)}]++
				}
				var parent kv.SequenceHash
				if skip > 0 {
					parent = residencytest.TreeHash(path[skip-1])
				}
				s.Store(tier, parent, skip > 0, uint32(skip), blocks)
			},
			"remove": func(rt *rapid.T) {
				tier := tiers.Draw(rt, "tier")
				var hashes []kv.SequenceHash
				for _, b := range rapid.SliceOfN(rapid.IntRange(0, len(tree.Parent)-1), 1, 8).Draw(rt, "blocks") {
					k := residencytest.Pair{Tier: tier, Hash: residencytest.TreeHash(b)}
					hashes = append(hashes, k.Hash)
					if model[k]--; model[k] <= 0 {
						delete(model, k)
					}
				}
				s.Remove(tier, hashes)
			},
			"store in group": func(rt *rapid.T) {
				pairs := drawGroupBlocks(rt, tree)
				for _, k := range pairs {
					model[k]++
					s.StoreGroup(k.Tier, k.Group, []kv.SequenceHash{k.Hash})
				}
			},
			"remove from group": func(rt *rapid.T) {
				for _, k := range drawGroupBlocks(rt, tree) {
					if model[k]--; model[k] <= 0 {
						delete(model, k)
					}
					s.RemoveGroup(k.Tier, k.Group, []kv.SequenceHash{k.Hash})
				}
			},
			"clear": func(rt *rapid.T) {
				if rapid.IntRange(0, 5).Draw(rt, "really") == 0 {
					s.Clear()
					clear(model)
				}
			},
			"flush": func(*rapid.T) { s.Flush() },
			"": func(rt *rapid.T) {
				if rapid.Bool().Draw(rt, "skip check") {
					return
				}
				s.Flush()
				set := rec.Resident()
				if len(set) != len(model) {
					rt.Fatalf("events say %d pairs, the model %d", len(set), len(model))
				}
				for k := range model {
					if _, ok := set[k]; !ok {
						rt.Fatalf("%x is missing in %s", uint64(k.Hash), k.Tier)
					}
				}
				residencytest.Check(t, s, set)
			},
		})
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// drawGroupBlocks draws blocks of one group in one tier.
func drawGroupBlocks(rt *rapid.T, tree *residencytest.Tree) (pairs []residencytest.Pair) {
	tier := rapid.SampledFrom(kv.Tiers[:]).Draw(rt, "tier")
	group := rapid.Uint32Range(1, 3).Draw(rt, "group")
	for _, b := range rapid.SliceOfN(rapid.IntRange(0, len(tree.Parent)-1), 1, 8).Draw(rt, "blocks") {
		pairs = append(pairs, residencytest.Pair{Tier: tier, Hash: residencytest.TreeHash(b), Group: group})
	}
	return pairs
}

func TestStreamTellsHealthChangesOnce(t *testing.T) {
	rec := residencytest.NewRecorder(t)
	s := NewStream(testOwner, rec)
	for _, h := range []kvevent.Health{kvevent.HealthExact, kvevent.HealthDegraded, kvevent.HealthDegraded, kvevent.HealthExact} {
		setHealth(s, h)
	}
	if got := fmt.Sprint(rec.Health()); got != "[degraded exact]" {
		t.Errorf("told %s", got)
	}
}
