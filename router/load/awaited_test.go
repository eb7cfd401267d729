package load

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// awaitTwin has the blocks, named by their prefixes, that each request of a worker computes and awaits.
type awaitTwin struct {
	id               string
	done             bool
	all              []string
	computes, awaits map[string]bool
}

// twinEnd removes a request. Each block that only it was to compute goes to the oldest request that awaits it.
func twinEnd(live []*awaitTwin, r *awaitTwin) []*awaitTwin {
	live = slices.DeleteFunc(live, func(q *awaitTwin) bool { return q == r })
	for p := range r.computes {
		if slices.ContainsFunc(live, func(q *awaitTwin) bool { return q.computes[p] || q.done && slices.Contains(q.all, p) }) {
			continue
		}
		for _, q := range live {
			if !q.done && q.awaits[p] {
				delete(q.awaits, p)
				q.computes[p] = true
				break
			}
		}
	}
	return live
}

// TestAwaitedBlocksAreComputedByOne: requests of one worker come, complete their prefill and end in any order.
// The pending tokens are those of a twin that follows each block.
func TestAwaitedBlocksAreComputedByOne(t *testing.T) {
	const blockSize = 16
	rapid.Check(t, func(t *rapid.T) {
		a, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		a.Align(members(worker1))
		var live []*awaitTwin
		known := make(map[string]bool) // to the index, for ever
		for n := range rapid.IntRange(1, 40).Draw(t, "calls") {
			switch what := rapid.IntRange(0, 3).Draw(t, "call"); {
			case what <= 1 || len(live) == 0:
				var sequence []kv.SequenceHash
				for range rapid.IntRange(1, 5).Draw(t, "blocks") {
					sequence = append(sequence, kv.SequenceHash(rapid.IntRange(1, 2).Draw(t, "block")))
				}
				var to int32
				for _, s := range a.Shared(nil, sequence) {
					to = s.Blocks
				}
				r := &awaitTwin{id: fmt.Sprint(n), all: prefixes(sequence), computes: make(map[string]bool), awaits: make(map[string]bool)}
				from := int32(0)
				for int(from) < len(sequence) && known[r.all[from]] {
					from++
				}
				to = max(to, from)
				for i, p := range r.all {
					if i >= int(from) {
						(map[bool]map[string]bool{true: r.awaits, false: r.computes})[i < int(to)][p] = true
					}
				}
				if err := a.Add(&Request{ID: r.id, Worker: worker1, Sequence: sequence, BlockSize: blockSize,
					PrefillTokens: 1 + blockSize*len(r.computes), Awaited: Awaited{from, to}}); err != nil {
					t.Fatal(err)
				}
				live = append(live, r)
			case what == 2:
				r := rapid.SampledFrom(live).Draw(t, "completes")
				if err := a.MarkPrefillCompleted(r.id); err != nil {
					t.Fatal(err)
				}
				r.done = true
				clear(r.computes)
				for _, p := range r.all {
					known[p] = true
				}
			default:
				r := rapid.SampledFrom(live).Draw(t, "ends")
				a.Free(r.id)
				live = twinEnd(live, r)
			}
			want := 0
			for _, r := range live {
				if !r.done {
					want += 1 + blockSize*len(r.computes)
				}
			}
			if got := a.Columns().PrefillTokens[0]; got != int64(want) {
				t.Fatalf("%d tokens are pending, want %d", got, want)
			}
		}
		for _, r := range live {
			a.Free(r.id)
		}
		if len(a.workers) != 0 {
			t.Fatal("a worker without requests is kept")
		}
	})
}
