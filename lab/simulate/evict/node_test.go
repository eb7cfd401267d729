package evict

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestNode: a node serves no more than the optimum of both tiers together. It writes each block that it
// stores at most once while the disk has room for all, then serves as much as an infinite cache, and
// writes no more than its budget.
func TestNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
		var accesses []Access
		known, asked := make(map[kv.SequenceHash]bool), 0
		for range rapid.IntRange(1, 60).Draw(t, "accesses") {
			n := 1 + r.IntN(6)
			accesses = append(accesses, Access{text(uint64(r.IntN(6)), n), r.IntN(n + 1)})
			asked += accesses[len(accesses)-1].Prompt
			for _, h := range accesses[len(accesses)-1].Sequence {
				known[h] = true
			}
		}
		sum := func(hits []int) (total int) {
			for _, n := range hits {
				total += n
			}
			return total
		}
		capacity := rapid.IntRange(1, 4*len(known)).Draw(t, "capacity")
		for _, tiering := range Tierings() {
			n, err := newNode(tiering, capacity, asked)
			if err != nil {
				t.Fatal(err)
			}
			hits, written := n.run(accesses, 0)
			best := sum(Optimum(accesses, capacity+n.host.capacity))
			if got := sum(hits); got > best {
				t.Fatalf("%s: %d blocks are served, the optimum serves %d", tiering.Name, got, best)
			}
			if n.budget != nil {
				if day := n.budget.Stats(n.now).DayBytes; day != uint64(written)*blockBytes {
					t.Fatalf("%s: %d blocks are written, the budget has %d bytes", tiering.Name, written, day)
				}
				continue
			}
			if n.host.capacity >= len(known) && (sum(hits) != best || written > len(known)) {
				t.Fatalf("%s: host memory has room for all: %d of %d blocks are served, %d written", tiering.Name, sum(hits), best, written)
			}
		}
	})
}
