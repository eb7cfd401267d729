package evict

import (
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestDefaultIsNearTheBest: of each pattern within a sixth of the best rule, conversations that all change
// included, where LRU and the scan-resistant rules each lose all or most of one.
func TestDefaultIsNearTheBest(t *testing.T) {
	few := slices.DeleteFunc(Patterns(), func(s Scenario) bool { return s.Name == "wide-cycle" || s.Name == "skewed" })
	rows, err := Run(Options{Seeds: 1, Scenarios: few, Out: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if got, best := row.ByRule[Default], row.Best(); got < 5./6*best {
			t.Errorf("%s: %s has %.3f of the blocks, the best rule %.3f", row.Scenario, Default, got, best)
		}
		for rule, share := range row.ByRule {
			if share > row.Optimum+1e-9 || row.Optimum > row.Infinite+1e-9 {
				t.Errorf("%s: %s has %.3f, the optimum %.3f, an infinite cache %.3f", row.Scenario, rule, share, row.Optimum, row.Infinite)
			}
		}
	}
	for rule, scenario := range map[string]string{"lru": "cycle", "sieve": "recent", "s3-fifo": "shift", "tinylfu": "recent"} {
		at := slices.IndexFunc(rows, func(r Row) bool { return r.Scenario == scenario })
		if got, best := rows[at].ByRule[rule], rows[at].Best(); got > 0.7*best {
			t.Errorf("%s: %s has %.3f, the best rule %.3f: the comparison shows nothing", scenario, rule, got, best)
		}
	}
}

// TestOptimum: no cache serves more than the optimum, on small random trees, and a cache with room for
// all serves as much as an infinite one.
func TestOptimum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		var accesses []Access
		known := make(map[kv.SequenceHash]bool)
		for range rapid.IntRange(1, 60).Draw(t, "accesses") {
			n := 1 + r.IntN(6)
			accesses = append(accesses, Access{text(uint64(r.IntN(6)), n), r.IntN(n + 1)})
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
		capacity := rapid.IntRange(1, len(known)).Draw(t, "capacity")
		best := sum(Optimum(accesses, capacity))
		for _, rule := range Rules() {
			c, served := NewCache(capacity, rule.New()), 0
			for _, a := range accesses {
				served += c.Access(a)
			}
			if served > best {
				t.Fatalf("%s serves %d blocks, the optimum %d", rule.Name, served, best)
			}
			all, of := NewCache(len(known), rule.New()), 0
			for _, a := range accesses {
				of += all.Access(a)
			}
			if full := sum(Optimum(accesses, len(known))); of != full {
				t.Fatalf("%s with room for all serves %d blocks, the optimum %d", rule.Name, of, full)
			}
		}
	})
}

// TestReport: a line for each scenario, and the least shares.
func TestReport(t *testing.T) {
	var out strings.Builder
	small := Scenario{Name: "small", Share: 0.5, Accesses: func(uint64) ([]Access, error) { return cycle(4, 5, 6), nil }}
	rows, err := Run(Options{Seeds: 2, Scenarios: []Scenario{small}, Nodes: true, Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	ofOptimum, ofBest := Worst(rows, policy.RuleLRU.String())
	if !strings.Contains(out.String(), "\nsmall ") || !strings.Contains(out.String(), "least share of best") || !strings.Contains(out.String(), "% written") || !strings.Contains(out.String(), " lru freq ") || !strings.Contains(out.String(), " adapt f+1/20") || len(rows[0].ByTiering) != len(Tierings()) || ofOptimum > ofBest {
		t.Errorf("%s\n%v of the optimum, %v of the best", out.String(), ofOptimum, ofBest)
	}
}
