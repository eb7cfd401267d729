package index

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// twin is the index as anybody would write it first.
type twin struct {
	held  map[kv.Owner]map[placed]bool
	pools map[kv.Worker]uint64
}

type placed struct {
	hash kv.SequenceHash
	tier kv.Tier
}

func (w *twin) apply(e kvevent.RouterEvent) {
	set := w.held[e.Owner]
	if set == nil {
		set = make(map[placed]bool)
		w.held[e.Owner] = set
	}
	switch e.Kind {
	case kvevent.Cleared:
		clear(set)
	case kvevent.Stored:
		for _, b := range e.Blocks {
			set[placed{b.Hash, e.Tier}] = true
		}
	case kvevent.Removed:
		for _, h := range e.Removed {
			delete(set, placed{h, e.Tier})
		}
	}
}

func (w *twin) has(worker kv.Worker, h kv.SequenceHash, t kv.Tier) bool {
	if w.held[kv.WorkerOwner(worker)][placed{h, t}] {
		return true
	}
	pool := w.pools[worker]
	return pool != 0 && t != kv.TierDevice && w.held[kv.PoolOwner(pool)][placed{h, t}]
}

func (w *twin) workers() []kv.Worker {
	return slices.SortedFunc(maps.Keys(w.pools), kv.Worker.Compare)
}

func (w *twin) match(seq []kv.SequenceHash) []Match {
	out := []Match{}
	for _, worker := range w.workers() {
		m := Match{Worker: worker}
		pos := 0
		for _, t := range kv.Tiers {
			for ; pos < len(seq) && w.has(worker, seq[pos], t); pos++ {
				m.Hits[t]++
			}
		}
		out = append(out, m)
	}
	return out
}

func (w *twin) digest(o kv.Owner) (sum, pairs uint64) {
	for p := range w.held[o] {
		sum += kv.Digest(p.hash, p.tier)
		pairs++
	}
	return sum, pairs
}

func drawLocals(t *rapid.T, label string) []kv.LocalHash {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) kv.LocalHash {
		return kv.LocalHash(rapid.IntRange(1, 3).Draw(t, "local"))
	}), 0, 6).Draw(t, label)
}

func drawOwner(t *rapid.T) kv.Owner {
	n := rapid.IntRange(1, 3).Draw(t, "owner")
	if rapid.Bool().Draw(t, "is pool") {
		return kv.PoolOwner(uint64(n))
	}
	return kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(n), Rank: kv.DPRank(n % 2)})
}

func drawStored(t *rapid.T, o kv.Owner) kvevent.RouterEvent {
	tier := kv.Tier(rapid.IntRange(0, kv.NumTiers-1).Draw(t, "tier"))
	return storedEvent(o, tier, drawLocals(t, "after"), drawLocals(t, "blocks"))
}

// TestModel: after any sequence of changes the index answers every question as
// a map of sets does, and its two lists per cell stay consistent.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		naive := &twin{held: make(map[kv.Owner]map[placed]bool), pools: make(map[kv.Worker]uint64)}
		var m Matches
		t.Repeat(map[string]func(*rapid.T){
			"event": func(t *rapid.T) {
				e := drawStored(t, drawOwner(t))
				switch rapid.IntRange(0, 9).Draw(t, "kind") {
				case 0:
					e = kvevent.RouterEvent{Owner: e.Owner, Kind: kvevent.Cleared}
				case 1, 2, 3:
					e = removal(e)
				}
				must(t, x.Apply(&e))
				naive.apply(e)
			},
			"replace": func(t *rapid.T) {
				o := drawOwner(t)
				var events []kvevent.RouterEvent
				for range rapid.IntRange(0, 3).Draw(t, "events") {
					events = append(events, drawStored(t, o))
				}
				must(t, x.Replace(o, events))
				delete(naive.held, o)
				for _, e := range events {
					naive.apply(e)
				}
			},
			"remove owner": func(t *rapid.T) {
				o := drawOwner(t)
				x.RemoveOwner(o)
				delete(naive.held, o)
			},
			"member": func(t *rapid.T) {
				n := rapid.IntRange(1, 3).Draw(t, "worker")
				w := kv.Worker{ID: kv.WorkerID(n), Rank: kv.DPRank(n % 2)}
				pool := uint64(rapid.IntRange(0, 3).Draw(t, "pool"))
				known := rapid.Bool().Draw(t, "known")
				must(t, x.SetMember(w, pool, known))
				if delete(naive.pools, w); known {
					naive.pools[w] = pool
				}
			},
			"": func(t *rapid.T) {
				locals := drawLocals(t, "prompt")
				seq := kv.AppendSequence(nil, locals)
				x.Match(&m, locals)
				same(t, "match", m.Workers, naive.match(seq))
				compareContent(t, x, naive)
			},
		})
	})
}

// compareContent checks digests and the dump, and that nothing leaks.
func compareContent(t *rapid.T, x *Index, naive *twin) {
	want := make(map[kv.Owner]map[placed]bool)
	cells := 0
	for o, set := range naive.held {
		sum, pairs := x.Digest(o)
		wantSum, wantPairs := naive.digest(o)
		same(t, fmt.Sprintf("digest of %s", o), [2]uint64{sum, pairs}, [2]uint64{wantSum, wantPairs})
		if len(set) > 0 {
			want[o] = set
		}
	}
	got := make(map[kv.Owner]map[placed]bool)
	x.Dump(func(o kv.Owner, h kv.SequenceHash, tiers kv.TierMask) {
		cells++
		for _, tier := range kv.Tiers {
			if tiers.Has(tier) {
				if got[o] == nil {
					got[o] = make(map[placed]bool)
				}
				got[o][placed{h, tier}] = true
			}
		}
	})
	same(t, "dump", got, want)
	same(t, "memberships", x.Stats().Memberships, cells)
	same(t, "owner ids in use or free", len(x.ids)+len(x.freeIDs)+1, len(x.owners))
}

func same[T any](t *rapid.T, what string, got, want T) {
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("%s differs (-want +got):\n%s", what, diff)
	}
}

func must(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}
