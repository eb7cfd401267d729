package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/blockyard-ai/blockyard/lab/simulate/evict"
	"github.com/blockyard-ai/blockyard/lab/simulate/policy"
)

// Row is what a policy did in a scenario, over all seeds.
type Row struct {
	Policy string   `json:"policy"`
	Mean   Result   `json:"mean"`
	Seeds  []Result `json:"seeds"`
}

// Table is a scenario with its rows.
type Table struct {
	Scenario string `json:"scenario"`
	About    string `json:"about"`
	Limits   Limits `json:"limits"`
	// Equal is true for equal workers without shared prefixes.
	Equal bool  `json:"equal_unshared"`
	Rows  []Row `json:"rows"`
}

// row returns the row of a policy.
func (t *Table) row(name string) (Row, bool) {
	for _, r := range t.Rows {
		if r.Policy == name {
			return r, true
		}
	}
	return Row{}, false
}

// Print writes the table for a terminal. explain adds the sample of price's decisions.
func (t *Table) Print(out io.Writer, explain bool) {
	infinite := 0.0
	if len(t.Rows) > 0 {
		infinite = t.Rows[0].Mean.InfiniteShare
	}
	fmt.Fprintf(out, "%s: %s; an infinite cache has %.0f %%; %s\n", t.Scenario, t.About, 100*infinite, t.Limits)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "policy\tTTFT ms\tp99\tTBT ms\tp99\tgood/s\ttokens/s\tcached\tdevice\thost\tdisk\tmost\tleast\tGB loaded\tGB read\tunfinished\t")
	for _, row := range t.Rows {
		r := &row.Mean
		device, host, disk := r.Served.percent()
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.1f\t%.1f\t%.2f\t%.0f\t%.0f %%\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%.1f\t%.1f\t%d\t\n", row.Policy, r.TTFTMean, r.TTFTP99, r.TBTMean, r.TBTP99,
			r.Goodput, r.TokensPerSecond, 100*r.Served.Cached(), device, host, disk,
			r.Herd, r.Balance, r.Moved.HostToDevice/1e9, r.Moved.DiskRead/1e9, r.Unfinished+r.Failed)
	}
	_ = w.Flush() // out's error is that of the next line
	if price, ok := t.row("price"); ok {
		fmt.Fprintf(out, "  price: %s%s\n", modes(price.Mean.Modes), verdictText(t))
		if explain {
			price.printDecisions(out)
		}
	}
	fmt.Fprintln(out)
}

// modes returns how often each mode decided.
func modes(m map[string]int) string {
	var parts []string
	for _, mode := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%d by %s", m[mode], mode))
	}
	return strings.Join(parts, ", ")
}

func verdictText(t *Table) string {
	if v := t.verdict(); len(v) > 0 {
		return "; " + strings.Join(v, "; ")
	}
	return "; no policy is better"
}

// margin is how much more goodput than price's makes a policy better.
const margin = 1.02

// verdict returns what speaks against price: policies with more goodput, and policies that are better
// in all four latencies. It is empty if nothing does. The oracle knows what no router knows and does
// not count.
func (t *Table) verdict() (against []string) {
	price, ok := t.row("price")
	if !ok {
		return []string{"price did not run"}
	}
	p := &price.Mean
	for _, row := range t.Rows {
		if q, known := policy.Named(row.Policy); row.Policy == "price" || known && q.Oracle {
			continue
		}
		r := &row.Mean
		if r.Goodput > margin*p.Goodput {
			against = append(against, fmt.Sprintf("%s has %.1f %% more goodput", row.Policy, 100*(r.Goodput/p.Goodput-1)))
		}
		if r.TTFTMean < p.TTFTMean && r.TTFTP99 < p.TTFTP99 && r.TBTMean < p.TBTMean && r.TBTP99 < p.TBTP99 {
			against = append(against, row.Policy+" is better in all four latencies")
		}
	}
	return against
}

// Verdict is the last line of a report.
type Verdict struct {
	Scenarios, BestOrWithin int
	// OracleShare is the least share of the oracle's tokens, 0 without the oracle.
	OracleShare float64
	// WorstHerd is the largest backlog of one of equal workers over the fair one, 0 without such a
	// scenario.
	WorstHerd float64
	// Kept compares what tiers keep; nil if it was not run.
	Kept []evict.Row
}

// Judge returns the verdict over tables.
func Judge(tables []Table) Verdict {
	v := Verdict{Scenarios: len(tables)}
	for i := range tables {
		t := &tables[i]
		if len(t.verdict()) == 0 {
			v.BestOrWithin++
		}
		price, ok := t.row("price")
		if !ok {
			continue
		}
		if oracle, ok := t.row("oracle"); ok && oracle.Mean.TokensPerSecond > 0 {
			if share := price.Mean.TokensPerSecond / oracle.Mean.TokensPerSecond; v.OracleShare == 0 || share < v.OracleShare {
				v.OracleShare = share
			}
		}
		if t.Equal {
			for _, seed := range price.Seeds {
				v.WorstHerd = max(v.WorstHerd, seed.Herd)
			}
		}
	}
	return v
}

// String returns the last line of a report.
func (v Verdict) String() string {
	kept := "not_measured"
	if len(v.Kept) > 0 {
		ofOptimum, ofBest := evict.Worst(v.Kept, evict.Default)
		lruOfOptimum, lruOfBest := evict.Worst(v.Kept, evict.LRU)
		kept = fmt.Sprintf("%.2f default_policy_of_best=%.2f lru_of_optimum=%.2f lru_of_best=%.2f", ofOptimum, ofBest, lruOfOptimum, lruOfBest)
	}
	return fmt.Sprintf("simulate: scenarios=%d best_or_within_2pct=%d oracle_share=%.3f worst_herd=%.2f default_policy_of_optimum=%s",
		v.Scenarios, v.BestOrWithin, v.OracleShare, v.WorstHerd, kept)
}
