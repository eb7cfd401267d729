package simulate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
	"github.com/blockyard-ai/blockyard/lab/simulate/evict"
	"github.com/blockyard-ai/blockyard/lab/simulate/policy"
	"github.com/blockyard-ai/blockyard/lab/simulate/report"
	"github.com/blockyard-ai/blockyard/lab/workload"
)

// Options say what is simulated.
type Options struct {
	// Scenarios and Policies are the names of those to run; empty runs all.
	Scenarios, Policies []string
	// Traces are files that are scenarios too, of form Format.
	Traces []string
	Format Format
	// Engine is the file of a recorded engine, which serves the traces and nothing else. Empty is the
	// built-in engine.
	Engine string
	// Workers are those of each generated scenario, whose rates grow with them; 0 is workersOfAll.
	Workers int
	// Seeds are 1 to Seeds.
	Seeds int
	// Evict compares what tiers keep, and no ways to choose a worker.
	Evict bool
	// Explain prints a sample of price's decisions with their parts. JSON and Page have the sample always.
	Explain bool
	// JSON and Page are files that the results are written to; empty writes none.
	JSON, Page string
	// Out gets the tables and the last line.
	Out io.Writer
}

// maxSeeds bounds the seeds.
const maxSeeds = 1000

// Validate reports the first option out of range.
func (o *Options) Validate() error {
	if o.Seeds < 1 || o.Seeds > maxSeeds {
		return fmt.Errorf("simulate seeds: %d is not in 1..%d", o.Seeds, maxSeeds)
	}
	if o.Workers != 0 && (o.Workers < workersOfAll || o.Workers > MaxWorkers) {
		return fmt.Errorf("simulate workers: %d is not in %d..%d", o.Workers, workersOfAll, MaxWorkers)
	}
	if o.Workers != 0 && len(o.Traces) > 0 {
		return fmt.Errorf("simulate workers: %d serve no trace, which has eight: want no trace", o.Workers)
	}
	for _, name := range o.Policies {
		if _, ok := policy.Named(name); !ok {
			return fmt.Errorf("simulate policy: %q is none", name)
		}
	}
	for _, name := range o.Scenarios {
		if !slices.ContainsFunc(Scenarios(workersOfAll), func(s Scenario) bool { return s.Name == name }) {
			return fmt.Errorf("simulate scenario: %q is none", name)
		}
	}
	if o.Engine != "" && (len(o.Traces) == 0 || len(o.Scenarios) > 0) {
		return fmt.Errorf("simulate engine: %q serves traces alone: want a trace and no scenario", o.Engine)
	}
	return nil
}

// Run simulates, writes the report and returns the tables. The error names the scenario, the policy
// and the seed of a run that failed.
func Run(ctx context.Context, o Options) ([]report.Table, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Evict {
		rows, err := o.kept()
		if err == nil {
			fmt.Fprintln(o.Out, report.Verdict{Kept: rows})
		}
		return nil, err
	}
	scenarios, err := o.scenarios()
	if err != nil {
		return nil, err
	}
	var policies []policy.Policy
	for _, p := range policy.All() {
		if len(o.Policies) == 0 && !p.OnlyNamed || slices.Contains(o.Policies, p.Name) {
			policies = append(policies, p)
		}
	}
	var tables []report.Table
	for i := range scenarios {
		t, err := runScenario(ctx, &scenarios[i], policies, o.Seeds)
		if err != nil {
			return nil, err
		}
		tables = append(tables, t)
		t.Print(o.Out, o.Explain)
	}
	v := report.Judge(tables)
	if v.Kept, err = o.kept(); err != nil {
		return nil, err
	}
	fmt.Fprintln(o.Out, v)
	return tables, o.write(tables)
}

// maxKeptSeeds bounds the seeds of the comparison of what tiers keep, whose results differ little.
const maxKeptSeeds = 2

// kept compares what tiers keep, on the evict package's scenarios, generated workloads and whole traces.
// With chosen scenarios it does nothing, unless Evict asks for it.
func (o *Options) kept() ([]evict.Row, error) {
	if len(o.Scenarios) > 0 && !o.Evict {
		return nil, nil
	}
	return evict.Run(evict.Options{Seeds: min(o.Seeds, maxKeptSeeds), Nodes: o.Evict, Scenarios: append(evict.Patterns(), o.accesses()...), Out: o.Out})
}

// scenarios returns the scenarios that run.
func (o *Options) scenarios() ([]Scenario, error) {
	var out []Scenario
	steps := engine.DefaultSteps()
	if o.Engine != "" {
		var err error
		if steps, err = ReadEngine(o.Engine); err != nil {
			return nil, err
		}
	}
	for _, s := range Scenarios(cmp.Or(o.Workers, workersOfAll)) {
		if o.Engine == "" && len(o.Scenarios) == 0 || slices.Contains(o.Scenarios, s.Name) {
			out = append(out, s)
		}
	}
	for _, path := range o.Traces {
		s, err := TraceScenario(path, cmp.Or(o.Format, FormatMooncake), steps)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// runScenario runs a scenario with each policy and seed, as many at a time as there are processors.
func runScenario(ctx context.Context, s *Scenario, policies []policy.Policy, seeds int) (report.Table, error) {
	results := make([][]report.Result, len(policies))
	for p := range policies {
		results[p] = make([]report.Result, seeds)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for seed := range seeds {
		load := sync.OnceValues(func() ([]*prompt, error) { return s.prompts(uint64(seed + 1)) })
		for i, p := range policies {
			group.Go(func() error {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				prompts, err := load()
				if err == nil {
					results[i][seed], err = simulate(s, prompts, p, uint64(seed+1))
				}
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		return report.Table{}, err
	}
	t := report.Table{Scenario: s.Name, About: s.About, Limits: s.Limits, Equal: s.EqualUnshared}
	for i, p := range policies {
		t.Rows = append(t.Rows, report.Row{Policy: p.Name, Mean: report.Mean(results[i]), Seeds: results[i]})
	}
	return t, nil
}

// prompts returns the prompts of a seed, the first one first. Runs share them.
func (s *Scenario) prompts(seed uint64) ([]*prompt, error) {
	requests, err := s.Load(seed)
	if err == nil {
		slices.SortStableFunc(requests, func(a, b workload.Request) int { return cmp.Compare(a.At, b.At) })
		var prompts []*prompt
		if prompts, err = promptsOf(requests, s.Hardware.BlockSize); err == nil {
			return prompts, nil
		}
	}
	return nil, fmt.Errorf("scenario %s, seed %d: %w", s.Name, seed, err)
}

// write writes the files of the options.
func (o *Options) write(tables []report.Table) error {
	if o.JSON != "" {
		b, err := json.MarshalIndent(tables, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.JSON, append(b, '\n'), 0o644); err != nil {
			return err // names the file
		}
	}
	if o.Page != "" {
		return os.WriteFile(o.Page, report.Page(tables), 0o644)
	}
	return nil
}

// Fleet has the times to the first token of several routers over those of one router.
type Fleet struct {
	Routers int
	// Mean and P99 are for routers that share their bookings, StaleMean and StaleP99 for routers that
	// do not.
	Mean, P99, StaleMean, StaleP99 float64
}

// CompareFleet simulates one router, n routers that share their bookings and n that do not, with a
// policy and the load of the scenario "synced", and returns the ratios.
func CompareFleet(ctx context.Context, policyName string, n, seeds int) (Fleet, error) {
	p, ok := policy.Named(policyName)
	if !ok {
		return Fleet{}, fmt.Errorf("simulate policy: %q is none", policyName)
	}
	all := Scenarios(workersOfAll)
	synced := all[slices.IndexFunc(all, func(s Scenario) bool { return s.Name == "synced" })]
	synced.Routers = n
	one, stale := synced, synced
	one.Routers, one.Synced, stale.Synced = 1, false, false
	var means [3]report.Result
	for i, s := range []*Scenario{&one, &synced, &stale} {
		t, err := runScenario(ctx, s, []policy.Policy{p}, seeds)
		if err != nil {
			return Fleet{}, err
		}
		means[i] = t.Rows[0].Mean
	}
	return Fleet{Routers: n,
		Mean: means[1].TTFTMean / means[0].TTFTMean, P99: means[1].TTFTP99 / means[0].TTFTP99,
		StaleMean: means[2].TTFTMean / means[0].TTFTMean, StaleP99: means[2].TTFTP99 / means[0].TTFTP99}, nil
}

// Split has what routers that share one index of all blocks keep and decide, beside one router with all blocks.
type Split struct {
	// Fullest is the share of the memberships in the fullest router at the end of a run, and Sum what all routers have together.
	Fullest, Sum float64
	// Mean and P99 are the times to the first token over those of one router.
	Mean, P99 float64
}

// CompareSplit simulates one router and n routers that share their bookings, each with the part of the index of the sequences
// whose first blocks have its hash, with a policy and the load of the scenario "synced".
func CompareSplit(ctx context.Context, policyName string, n, first, seeds int) (Split, error) {
	p, ok := policy.Named(policyName)
	if !ok {
		return Split{}, fmt.Errorf("simulate policy: %q is none", policyName)
	}
	all := Scenarios(workersOfAll)
	parts := all[slices.IndexFunc(all, func(s Scenario) bool { return s.Name == "synced" })]
	parts.Routers, parts.SplitBy = n, first
	one := parts
	one.Routers, one.Synced, one.SplitBy = 1, false, 0
	var rows [2]report.Row
	for i, s := range []*Scenario{&one, &parts} {
		t, err := runScenario(ctx, s, []policy.Policy{p}, seeds)
		if err != nil {
			return Split{}, err
		}
		rows[i] = t.Rows[0]
	}
	out := Split{Mean: rows[1].Mean.TTFTMean / rows[0].Mean.TTFTMean, P99: rows[1].Mean.TTFTP99 / rows[0].Mean.TTFTP99}
	for seed, r := range rows[1].Seeds {
		whole, sum := float64(rows[0].Seeds[seed].Memberships[0]*seeds), 0
		for _, m := range r.Memberships {
			sum += m
		}
		out.Fullest, out.Sum = out.Fullest+float64(slices.Max(r.Memberships))/whole, out.Sum+float64(sum)/whole
	}
	return out, nil
}
