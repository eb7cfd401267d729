package simulate

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
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

func withFile(path string, read func(io.Reader) ([]workload.Request, error)) ([]workload.Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err // names the file
	}
	defer f.Close()
	return read(f)
}

// TraceScenario returns a scenario whose seeds are parts of a trace, each beginning at a place of its
// own. The trace is sped up until the workers are about half busy.
func TraceScenario(path string, f Format) (Scenario, error) {
	all, err := readTrace(path, f)
	if err != nil {
		return Scenario{}, err
	}
	h := machines(equal(8))
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
	capacity := float64(len(h.Speeds)) * 2048e3 / engine.DefaultSteps().Milliseconds(2048, 0, 0)
	length := max(time.Second, all[len(all)-1].At)
	speedUp := traceLoad * capacity * length.Seconds() / float64(max(1, fresh))
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	return Scenario{Name: name, About: fmt.Sprintf("%s trace, %.1f times as fast", f, speedUp), Hardware: h, Limits: Limits{2500 * time.Millisecond, 60 * time.Millisecond},
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
