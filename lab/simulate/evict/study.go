package evict

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Rule is a way to choose what leaves.
type Rule struct {
	Name string
	// New returns an empty order.
	New func() policy.Evictor
}

// Default is the rule of an agent without --host-eviction and --disk-eviction, LRU the agent's other rule.
var Default, LRU = policy.AgentRule.String(), policy.RuleLRU.String()

// Rules returns the compared rules. The agent has the first two.
func Rules() []Rule {
	return []Rule{
		{policy.RuleLRU.String(), policy.RuleLRU.New},
		{policy.RuleAdaptive.String(), policy.RuleAdaptive.New},
		{"tinylfu", func() policy.Evictor { return policy.NewTinyLFU(0.05) }},
		{"sieve", func() policy.Evictor { return &sieve{} }},
		{"s3-fifo", func() policy.Evictor { return &s3fifo{} }},
		{"arc", func() policy.Evictor { return &arc{} }},
		{"gdsf", func() policy.Evictor { return &gdsf{} }},
	}
}

// Options say what is compared.
type Options struct {
	// Seeds are the runs of each scenario, at least 1.
	Seeds     int
	Scenarios []Scenario
	// Nodes compares ways to run host memory and disk together too.
	Nodes bool
	// Out gets the tables.
	Out io.Writer
}

// Row is one scenario: the share of prompt blocks that the cache had, mean over the seeds.
type Row struct {
	Scenario          string
	Capacity          int
	Infinite, Optimum float64
	ByRule            map[string]float64
	// ByTiering has the shares of a node whose disk has the capacity, Written the blocks that it writes to
	// disk over the blocks that are asked for.
	ByTiering, Written           map[string]float64
	requests, distinct, lookedUp int
}

// defaultShare is a cache's share of the distinct blocks.
const defaultShare = 0.15

// warm is the share of the accesses that only fill the cache.
const warm = 0.2

// Run compares the rules and prints a table. It runs as many scenarios at a time as there are processors.
func Run(o Options) ([]Row, error) {
	rows := make([]Row, len(o.Scenarios))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range o.Scenarios {
		group.Go(func() error {
			var err error
			if rows[i], err = o.compare(&o.Scenarios[i]); err != nil {
				return fmt.Errorf("scenario %s: %w", o.Scenarios[i].Name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	print(o.Out, rows)
	if o.Nodes {
		printNodes(o.Out, rows)
	}
	return rows, nil
}

// compare returns the row of a scenario.
func (o *Options) compare(s *Scenario) (Row, error) {
	row := Row{Scenario: s.Name, ByRule: make(map[string]float64), ByTiering: make(map[string]float64), Written: make(map[string]float64)}
	for seed := range o.Seeds {
		accesses, err := s.Accesses(uint64(seed + 1))
		if err != nil {
			return row, err
		}
		if err := row.run(accesses, cmp.Or(s.Share, defaultShare), float64(o.Seeds), o.tierings()); err != nil {
			return row, err
		}
	}
	return row, nil
}

// tierings returns the ways to run a node that are compared.
func (o *Options) tierings() []Tiering {
	if !o.Nodes {
		return nil
	}
	return Tierings()
}

// run adds a seed's shares to a row.
func (row *Row) run(accesses []Access, share, seeds float64, nodes []Tiering) error {
	known := make(map[kv.SequenceHash]bool)
	infinite := make([]int, len(accesses))
	for i, a := range accesses {
		for infinite[i] < a.Prompt && known[a.Sequence[infinite[i]]] {
			infinite[i]++
		}
		for _, h := range a.Sequence {
			known[h] = true
		}
	}
	first := int(warm * float64(len(accesses)))
	asked := 0
	for _, a := range accesses[first:] {
		asked += a.Prompt
	}
	of := func(hits []int) float64 {
		sum := 0
		for _, n := range hits[first:] {
			sum += n
		}
		return float64(sum) / float64(max(1, asked)) / seeds
	}
	row.Capacity = max(1, int(share*float64(len(known))))
	row.Infinite += of(infinite)
	row.Optimum += of(Optimum(accesses, row.Capacity))
	for _, r := range Rules() {
		c, hits := NewCache(row.Capacity, r.New()), make([]int, len(accesses))
		for i, a := range accesses {
			hits[i] = c.Access(a)
		}
		row.ByRule[r.Name] += of(hits)
	}
	for _, t := range nodes {
		n, err := newNode(t, row.Capacity, asked)
		if err != nil {
			return err
		}
		hits, written := n.run(accesses, first)
		row.ByTiering[t.Name] += of(hits)
		row.Written[t.Name] += float64(written) / float64(max(1, asked)) / seeds
	}
	return nil
}

// Best returns the largest share that a rule without knowledge of the future has.
func (row *Row) Best() float64 {
	best := 0.0
	for _, share := range row.ByRule {
		best = max(best, share)
	}
	return best
}

// Worst returns the least of a rule's shares over the optimum's, and over the best rule's.
func Worst(rows []Row, rule string) (ofOptimum, ofBest float64) {
	ofOptimum, ofBest = math.Inf(1), math.Inf(1)
	for i := range rows {
		row := &rows[i]
		if row.Optimum > 0 {
			ofOptimum = min(ofOptimum, row.ByRule[rule]/row.Optimum)
		}
		if best := row.Best(); best > 0 {
			ofBest = min(ofBest, row.ByRule[rule]/best)
		}
	}
	return ofOptimum, ofBest
}

// print writes the table: per cent of the prompt blocks.
func print(out io.Writer, rows []Row) {
	fmt.Fprintf(out, "%-22s %8s %8s %8s", "what is kept, % hits", "blocks", "infinite", "optimum")
	for _, r := range Rules() {
		fmt.Fprintf(out, " %8s", r.Name)
	}
	fmt.Fprintln(out)
	for _, row := range rows {
		fmt.Fprintf(out, "%-22s %8d %8.1f %8.1f", row.Scenario, row.Capacity, 100*row.Infinite, 100*row.Optimum)
		for _, r := range Rules() {
			fmt.Fprintf(out, " %8.1f", 100*row.ByRule[r.Name])
		}
		fmt.Fprintln(out)
	}
	printLeast(out, rows)
}

// printNodes writes the table of nodes: per cent of the prompt blocks that the node had, and that it wrote
// to disk.
func printNodes(out io.Writer, rows []Row) {
	fmt.Fprintf(out, "\n%-22s", "host and disk: % hits, % written")
	for _, t := range Tierings() {
		fmt.Fprintf(out, " %13s", t.Name)
	}
	fmt.Fprintln(out)
	for _, row := range rows {
		fmt.Fprintf(out, "%-32s", row.Scenario)
		for _, t := range Tierings() {
			fmt.Fprintf(out, " %6.1f %6.1f", 100*row.ByTiering[t.Name], 100*row.Written[t.Name])
		}
		fmt.Fprintln(out)
	}
}

// printLeast writes the least shares of each rule.
func printLeast(out io.Writer, rows []Row) {
	for k, what := range []string{"least share of optimum", "least share of best"} {
		fmt.Fprintf(out, "%s%s", what, strings.Repeat(" ", 49-len(what)))
		for _, r := range Rules() {
			ofOptimum, ofBest := Worst(rows, r.Name)
			fmt.Fprintf(out, " %8.2f", []float64{ofOptimum, ofBest}[k])
		}
		fmt.Fprintln(out)
	}
}
