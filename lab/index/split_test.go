package index

import (
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/index/loggen"
	"github.com/blockyard-ai/blockyard/lab/index/oplog"
	"github.com/blockyard-ai/blockyard/lab/simulate/partition"
	"github.com/blockyard-ai/blockyard/router/index"
)

// TestIndexesSplitByFirstBlocksDecideAsOne: routers that each keep the sequences whose first blocks have their hash
// answer every prompt as one index with all blocks does, and each keeps about its share. It logs the shares of
// docs/fleet.md.
func TestIndexesSplitByFirstBlocksDecideAsOne(t *testing.T) {
	const engines, routers = 8, 4
	words, err := loggen.Generate(loggen.Options{Seed: 3, Engines: engines, Pool: 4096, Requests: 1500, MaxPrompt: 1024, Affinity: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	l, err := oplog.Parse(words)
	if err != nil {
		t.Fatal(err)
	}
	for _, first := range []int{1, 32} {
		r := newReplay(l)
		all := make([]*index.Index, routers+1) // the last one has everything
		for i := range all {
			if all[i], err = newIndex(engines); err != nil {
				t.Fatal(err)
			}
		}
		s := partition.New(routers, first)
		var want, got index.Matches
		for _, n := range r.order {
			if n < 0 {
				prompt := r.queries[^n]
				all[routers].Match(&want, prompt, index.Continuation)
				all[s.Ask(prompt)].Match(&got, prompt, index.Continuation)
				if !slices.Equal(got.Hits, want.Hits) {
					t.Fatalf("first %d blocks: a prompt of %d blocks: %v, want %v", first, len(prompt), got.Hits, want.Hits)
				}
				continue
			}
			if err := all[routers].Apply(&r.events[n]); err != nil {
				t.Fatal(err)
			}
			s.Split(&r.events[n], func(router int, e *kvevent.RouterEvent) {
				if err := all[router].Apply(e); err != nil {
					t.Fatal(err)
				}
			})
		}
		whole := all[routers].Stats().Memberships
		sum, most := 0, 0
		for _, x := range all[:routers] {
			x := x.Stats()
			sum, most = sum+x.Memberships, max(most, x.Memberships)
			if x.UnknownRemovals != 0 || x.Parked != 0 {
				t.Errorf("first %d blocks: %+v", first, x)
			}
		}
		t.Logf("first %d blocks: the fullest of %d routers keeps %d %%, all together %d %%", first, routers, 100*most/whole, 100*sum/whole)
		if sum < whole || 2*most > whole { // a fair share is a quarter
			t.Errorf("first %d blocks: %d memberships in all and %d in one router, want at least %d and at most half of it", first, sum, most, whole)
		}
	}
}
