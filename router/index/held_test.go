package index_test

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// TestHeldIsTheDigestsCount: after whatever happens to an owner, asked by the current
// list of members, an older one or another index's.
func TestHeldIsTheDigestsCount(t *testing.T) {
	x, other := newIndex(t, index.Options{}), newIndex(t, index.Options{})
	a, b, c := worker(1, 0), worker(2, 0), worker(3, 0)
	join(t, x, b, c)
	join(t, other, a, b, c)
	older := x.Members()
	prompt := series(1, 20)
	for _, step := range []struct {
		name string
		do   func()
		want [3]uint64
	}{
		{"nothing", func() {}, [3]uint64{}},
		{"stored", func() {
			apply(t, x, stored(kv.WorkerOwner(b), kv.TierDevice, prompt, 0, 20), stored(kv.WorkerOwner(c), kv.TierHost, prompt, 0, 5))
		}, [3]uint64{0, 20, 5}},
		{"a worker more, before the others", func() {
			join(t, x, a)
			apply(t, x, stored(kv.WorkerOwner(a), kv.TierDevice, prompt, 0, 3))
		}, [3]uint64{3, 20, 5}},
		{"removed", func() { apply(t, x, removed(kv.WorkerOwner(b), kv.TierDevice, prompt, 12, 20)) }, [3]uint64{3, 12, 5}},
		{"replaced", func() {
			if err := x.Replace(kv.WorkerOwner(b), []kvevent.RouterEvent{stored(kv.WorkerOwner(b), kv.TierDisk, prompt, 0, 7)}); err != nil {
				t.Fatal(err)
			}
		}, [3]uint64{3, 7, 5}},
		{"cleared", func() { apply(t, x, cleared(kv.WorkerOwner(c))) }, [3]uint64{3, 7, 0}},
	} {
		step.do()
		for i, w := range []kv.Worker{a, b, c} {
			for _, m := range []*index.Members{x.Members(), older, other.Members()} {
				at, ok := m.Find(w)
				if !ok {
					continue
				}
				if got := x.Held(m, at); got != step.want[i] {
					t.Errorf("%s: worker %s holds %d, want %d", step.name, w, got, step.want[i])
				}
			}
			if _, pairs := x.Digest(kv.WorkerOwner(w)); pairs != step.want[i] {
				t.Errorf("%s: worker %s: the digest counts %d", step.name, w, pairs)
			}
		}
	}
}
