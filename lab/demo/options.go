package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/workload"
)

// Options of a run. Start from Defaults: a zero is a value here, and mostly a bad one.
type Options struct {
	// Programs are the binaries of all processes. NATSURL is the server of their
	// events.
	cluster.Programs
	NATSURL string

	// Nodes is the number of agents, 1..16. Engines is the number of engines on all
	// nodes, Nodes..64.
	Nodes, Engines int
	// Requests is the length of the workload, or the number of lines of the trace,
	// 1..1,000,000.
	Requests int
	// Seed selects workload and dropped frames.
	Seed uint64
	// PrefillRate is the number of tokens that an engine prefills in a simulated second,
	// 1..10,000,000.
	PrefillRate int
	// SpeedUp divides all simulated time; 0.01..1,000.
	SpeedUp float64
	// Trace is a file in Mooncake's format; empty for the built-in workload.
	Trace string

	// BlockSize is in tokens, 1..4,096; DeviceBlocks is per engine,
	// 1..16,777,216.
	BlockSize, DeviceBlocks int
	// HostBytes and DiskBytes are per node, from one extent to 1 TiB.
	HostBytes, DiskBytes uint64
	// DropFrames is the number of event frames that each engine does not send, 0..1,000.
	DropFrames int
	// Concurrency bounds the requests in flight, 1..4,096.
	Concurrency int

	// Report is a file for the figures as JSON; empty for none.
	Report string
	// Hybrid makes the engines' model one with a sliding window beside full attention. It is run
	// once, and the router's credit is compared with the engines and their agents. Then an agent and
	// an engine are killed, and it is compared again.
	Hybrid bool
	// OnlyOurs leaves out the two runs for comparison.
	OnlyOurs bool
	// KeepLogs keeps the children's logs even if all went well.
	KeepLogs bool
	// Dir is the parent of the directory for logs and disk tiers; empty for the
	// temporary directory.
	Dir string

	// Out gets progress and report, Err the reasons of a failure.
	Out, Err io.Writer
	// Terminal: Out can rewrite its current line. Color: Out understands colour codes.
	Terminal, Color bool

	// limits replace the values of limitsFor where they are not zero.
	limits limits
}

// extentBytes is the size by which tiers grow. It is small, as the demo's tiers are.
const extentBytes = 1 << 20

// usualRequests is the length of the built-in workload. The default tiers fit it.
const usualRequests = 400

// Defaults returns options that show every tier at work in less than a minute, or
// options for the longer prompts of a trace. requests is the length of the workload, 0
// for the usual one. A shorter workload gets smaller tiers, which it would not fill
// otherwise. Programs, NATSURL, Out and Err are left to the caller.
func Defaults(trace string, requests int) Options {
	o := Options{
		Nodes: 2, Engines: 4, Requests: usualRequests, Seed: 1, SpeedUp: 2.5, PrefillRate: 5_000,
		BlockSize: 16, DeviceBlocks: 768, HostBytes: 8 << 20, DiskBytes: 256 << 20,
		DropFrames: 2, Concurrency: 256,
	}
	if trace != "" {
		o.Trace, o.Requests, o.SpeedUp, o.PrefillRate = trace, 1000, 5, 20_000
		o.BlockSize, o.DeviceBlocks = 128, 1536
		o.HostBytes, o.DiskBytes = 28<<20, 512<<20
	}
	if requests > 0 {
		if trace == "" && requests < usualRequests {
			o.DeviceBlocks = max(o.DeviceBlocks*requests/usualRequests, 320)
		}
		if requests < o.Requests {
			o.HostBytes = max(o.HostBytes*uint64(requests)/uint64(o.Requests), extentBytes)
		}
		o.Requests = requests
	}
	return o
}

// Validate checks the numbers. The error names the flag, its value and its range.
func (o *Options) Validate() error {
	for _, c := range []struct {
		flag     string
		v        int
		min, max int
	}{
		{"nodes", o.Nodes, 1, 16},
		{"engines", o.Engines, o.Nodes, 64},
		{"requests", o.Requests, 1, 1_000_000},
		{"prefill-rate", o.PrefillRate, 1, 10_000_000},
		{"block-size", o.BlockSize, 1, 4096},
		{"device-blocks", o.DeviceBlocks, 1, 1 << 24},
		{"drop-frames", o.DropFrames, 0, 1000},
		{"concurrency", o.Concurrency, 1, 4096},
	} {
		if c.v < c.min || c.v > c.max {
			return fmt.Errorf("--%s %d: want %d..%d", c.flag, c.v, c.min, c.max)
		}
	}
	if math.IsNaN(o.SpeedUp) || o.SpeedUp < 0.01 || o.SpeedUp > 1000 {
		return fmt.Errorf("--speed-up %g: want 0.01..1000", o.SpeedUp)
	}
	for _, c := range []struct {
		flag string
		v    uint64
	}{{"host-size", o.HostBytes}, {"disk-size", o.DiskBytes}} {
		if c.v < extentBytes || c.v > 1<<40 {
			return fmt.Errorf("--%s %d: want %d (1MiB) to %d (1TiB) bytes", c.flag, c.v, extentBytes, uint64(1<<40))
		}
	}
	return nil
}

// check returns an error for options that Run and Selftest cannot work with: missing ones,
// numbers out of range, and places that cannot be written.
func (o *Options) check() error {
	if o.Product == "" || o.Lab == "" || o.NATSURL == "" || o.Out == nil || o.Err == nil {
		return errors.New("demo options: Programs, NATSURL, Out and Err must be set")
	}
	if err := o.Validate(); err != nil {
		return err
	}
	return o.checkWritable()
}

// checkWritable returns an error when the report or the directory cannot be written, so that a
// run does not fail after a minute of work. It leaves no file.
func (o *Options) checkWritable() error {
	if o.Report != "" {
		_, missing := os.Stat(o.Report)
		f, err := os.OpenFile(o.Report, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("--report: %w", err)
		}
		f.Close()
		if missing != nil {
			os.Remove(o.Report)
		}
	}
	if o.Dir != "" {
		probe, err := os.MkdirTemp(o.Dir, "blockyard-probe-")
		if err != nil {
			return fmt.Errorf("--dir: %w", err)
		}
		os.Remove(probe)
	}
	return nil
}

// Geometry of the simulated model. One block is about 4 KiB whatever its number
// of tokens, so that the demo moves blocks rather than fills memory.
const (
	modelLayers     = 2
	modelOuterDim   = 2
	modelDTypeBytes = 2
)

// innerDim returns the number of elements per token, layer and outer index.
func innerDim(blockSize int) int {
	const target = 4096
	return max(1, target/(modelLayers*modelOuterDim*modelDTypeBytes*blockSize))
}

// limits bound the demo's waits in real time.
type limits struct {
	// call bounds an answer of router or engine. generate bounds an engine's answer to
	// a prompt, up to the last token.
	call, generate time.Duration
	// settle bounds the time to rest after the last answer.
	settle time.Duration
	// whole bounds the demo from its first process to its last figure.
	whole time.Duration
}

// maxWorkloadTime bounds the share of the workload in the limits.
const maxWorkloadTime = 30 * 24 * time.Hour

// limitsFor returns the time limits of a demo with these requests at o's speed. An answer may
// take a minute, plus the time in which one engine without a cache computes every prompt. The
// whole may take a quarter of an hour, plus three times that time and the arrivals in every run.
// Limits in o win.
func limitsFor(o *Options, requests []workload.Request) limits {
	compute := float64(workload.InputTokens(requests)) / float64(o.PrefillRate)
	arrivals, output := 0.0, 0
	for i := range requests {
		arrivals = max(arrivals, requests[i].At.Seconds())
		output = max(output, requests[i].OutputTokens)
	}
	compute += float64(output) * stepBase.Seconds()
	runs := float64(len(variants(o)))
	return limits{
		call:     cmp.Or(o.limits.call, 10*time.Second),
		generate: cmp.Or(o.limits.generate, time.Minute+o.realTime(compute)),
		settle:   cmp.Or(o.limits.settle, 15*time.Second),
		whole:    cmp.Or(o.limits.whole, 15*time.Minute+o.realTime(3*runs*(compute+arrivals))),
	}
}

// watch returns a context that ends with ctx, and after limit.
func watch(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("demo: not done within %s: something hangs", limit))
}

// realTime returns the real time of simulated seconds, at most maxWorkloadTime.
func (o *Options) realTime(simulated float64) time.Duration {
	s := min(simulated/o.SpeedUp, maxWorkloadTime.Seconds())
	return time.Duration(s * float64(time.Second))
}
