package simulate

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
	"github.com/blockyard-ai/blockyard/lab/simulate/evict"
	"github.com/blockyard-ai/blockyard/lab/simulate/policy"
	"github.com/blockyard-ai/blockyard/lab/simulate/report"
	"github.com/blockyard-ai/blockyard/lab/workload"
)

// Format is the form of a trace file.
type Format string

// The forms. FormatTester is a directory with a file for each session.
const (
	FormatMooncake Format = "mooncake"
	FormatBailian  Format = "bailian"
	FormatTester   Format = "kv-cache-tester"
)

// traceLoad is the share of the workers' prefill speed that a trace's prompts take, if an infinite cache
// serves what it can. A trace is sped up or slowed down to that.
const traceLoad = 0.25

// traceBlock returns the tokens of a block of a form.
func traceBlock(f Format) int {
	switch f {
	case FormatBailian:
		return 4 * workload.BailianBlock // larger blocks of equal ids, to have fewer
	case FormatTester:
		return 64
	}
	return workload.MooncakeBlock
}

// readTrace returns the requests of a trace.
func readTrace(path string, f Format) ([]workload.Request, error) {
	switch f {
	case FormatBailian:
		return withFile(path, func(r io.Reader) ([]workload.Request, error) { return workload.ReadBailian(r, path, 0) })
	case FormatTester:
		names, err := filepath.Glob(filepath.Join(path, "*.json"))
		if err != nil || len(names) == 0 {
			return nil, fmt.Errorf("%s: no *.json in it", path)
		}
		slices.Sort(names)
		var all []workload.Request
		for i, name := range names {
			session, err := withFile(name, func(r io.Reader) ([]workload.Request, error) { return workload.ReadTester(r, name, i) })
			if err != nil {
				return nil, err
			}
			for k := range session { // sessions begin one after the other
				session[k].At = time.Duration(i) * 2 * time.Second
			}
			all = append(all, session...)
		}
		return all, nil
	case FormatMooncake:
		return workload.ReadMooncakeFile(path, 0)
	}
	return nil, fmt.Errorf("trace form: %q is not one of mooncake, bailian, kv-cache-tester", f)
}

func withFile[T any](path string, read func(io.Reader) (T, error)) (T, error) {
	f, err := os.Open(path)
	if err != nil {
		var none T
		return none, err // names the file
	}
	defer f.Close()
	return read(f)
}

// TraceScenario returns a scenario whose seeds are parts of a trace, each beginning at a place of its
// own. The workers' steps are as recorded, and traceLoad says how much the trace is sped up.
func TraceScenario(path string, f Format, steps *engine.Steps) (Scenario, error) {
	all, err := readTrace(path, f)
	if err != nil {
		return Scenario{}, err
	}
	h := machines(equal(workersOfAll))
	h.useEngine(steps)
	block := traceBlock(f)
	ratio := float64(h.BlockSize) / float64(block)
	h.BlockSize, h.Blocks = block, int(float64(h.Blocks)*ratio)
	h.HostBlocks, h.DiskBlocks = int(float64(h.HostBlocks)*ratio), int(float64(h.DiskBlocks)*ratio)
	if longest := workload.Longest(all); h.Blocks < 2*longest/block {
		h.Blocks = 2 * longest / block
	}
	prompts, err := promptsOf(all, block)
	if err != nil {
		return Scenario{}, err
	}
	fresh := 0
	for _, p := range prompts {
		fresh += p.tokens - p.known
	}
	capacity := float64(len(h.Speeds)) * 2048e3 / steps.Milliseconds(2048, 0, 0)
	length := max(time.Second, all[len(all)-1].At)
	speedUp := traceLoad * capacity * length.Seconds() / float64(max(1, fresh))
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	return Scenario{Name: name, About: fmt.Sprintf("%s trace, %.1f times as fast", f, speedUp), Hardware: h, Limits: traceLimits,
		Load: func(seed uint64) ([]workload.Request, error) { return window(all, speedUp, seed), nil }, Duration: Span, WarmUp: 10 * time.Second, Routers: 1}, nil
}

// window returns the sessions that begin within Span from a random place of a trace, sped up. A trace
// that is too short is gone through again from its start.
func window(all []workload.Request, speedUp float64, seed uint64) []workload.Request {
	length := time.Duration(float64(Span) * speedUp)
	total := all[len(all)-1].At + time.Second
	begin := time.Duration(rand.New(rand.NewPCG(seed, 40)).Float64() * float64(max(0, total-length)))
	inside := make(map[int]bool)
	var out []workload.Request
	for _, r := range all {
		if r.Turn == 0 && r.Fork == nil && r.At >= begin && r.At < begin+length {
			inside[r.Session] = true
		}
		if inside[r.Session] {
			r.At = time.Duration(float64(max(0, r.At-begin)) / speedUp)
			out = append(out, r)
		}
	}
	return out
}

// accesses returns generated workloads and whole traces as ways in which blocks are asked for.
func (o *Options) accesses() []evict.Scenario {
	generated := func(name, about string, load func(seed uint64) ([]workload.Request, error)) evict.Scenario {
		return evict.Scenario{Name: name, About: about, Accesses: func(seed uint64) ([]evict.Access, error) {
			requests, err := load(seed)
			if err != nil {
				return nil, err
			}
			return Accesses(requests, 64)
		}}
	}
	out := []evict.Scenario{
		generated("chat", "conversations with shared system prompts", func(seed uint64) ([]workload.Request, error) {
			return workload.Generate(workload.Options{Seed: seed, Requests: 6000, SystemPrompts: 40, Rate: 2, Turns: 5, MaxTurns: 14, Think: 20 * time.Second,
				System: workload.Lengths{Median: 1200, Sigma: 0.7, Min: 100, Max: 6000}, User: workload.Lengths{Median: 300, Sigma: 1.1, Min: 8, Max: 6000},
				Output: workload.Lengths{Median: 180, Sigma: 0.7, Min: 4, Max: 1200}})
		}),
		generated("agents", "agents with tools and helpers", func(seed uint64) ([]workload.Request, error) {
			return workload.Agents(workload.AgentOptions{Seed: seed, Sessions: 400, Rate: 0.5, Systems: 6, Turns: 14, MaxTurns: 40, Forks: 0.08, Tools: 6 * time.Second,
				System: workload.Lengths{Median: 9000, Sigma: 0.3, Min: 3000, Max: 16_000}, Tool: workload.Lengths{Median: 500, Sigma: 1.3, Min: 16, Max: 12_000},
				Output: workload.Lengths{Median: 110, Sigma: 0.8, Min: 8, Max: 1000}})
		}),
		generated("documents", "questions about long documents of Zipf popularity", func(seed uint64) ([]workload.Request, error) {
			return workload.Generate(workload.Options{Seed: seed, Requests: 5000, SystemPrompts: 300, SystemZipf: 0.9, Rate: 2, Turns: 2, MaxTurns: 6, Think: 20 * time.Second,
				System: workload.Lengths{Median: 8000, Sigma: 0.6, Min: 2000, Max: 30_000}, User: workload.Lengths{Median: 200, Sigma: 1, Min: 8, Max: 4000},
				Output: workload.Lengths{Median: 120, Sigma: 0.6, Min: 4, Max: 600}})
		}),
	}
	for _, path := range o.Traces {
		f := cmp.Or(o.Format, FormatMooncake)
		out = append(out, evict.Scenario{Name: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)), About: string(f) + " trace", Accesses: func(uint64) ([]evict.Access, error) {
			all, err := readTrace(path, f)
			if err != nil {
				return nil, err
			}
			return Accesses(all, traceBlock(f))
		}})
	}
	return out
}

// ReadEngine reads the file of a recorded engine. The error names the file and the field.
func ReadEngine(path string) (*engine.Steps, error) {
	return withFile(path, func(r io.Reader) (*engine.Steps, error) {
		steps, err := engine.ReadSteps(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return steps, nil
	})
}

// Serve returns what one recorded engine does with requests, mean over seeds of its noise. The recording has
// all sizes. Every request counts.
func Serve(steps *engine.Steps, requests []workload.Request, seeds int) (report.Result, error) {
	h := Hardware{Speeds: equal(1), PerNode: 1, BlockSize: steps.BlockSize, HostBytes: 1, DiskBytes: 1}
	h.useEngine(steps)
	last := time.Duration(0)
	for i := range requests {
		last = max(last, requests[i].At)
	}
	s := &Scenario{Name: "recorded", Hardware: h, Duration: last + time.Second, Routers: 1}
	prompts, err := promptsOf(requests, steps.BlockSize)
	if err != nil {
		return report.Result{}, err
	}
	p, _ := policy.Named("round-robin")
	results := make([]report.Result, seeds)
	for seed := range results {
		if results[seed], err = simulate(s, prompts, p, uint64(seed+1)); err != nil {
			return report.Result{}, err
		}
	}
	return report.Mean(results), nil
}
