package demo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/workload"
)

// ErrFailed says that a check did not pass. Options.Err has the reasons.
var ErrFailed = errors.New("checks did not pass")

// How long the children have to stop: after a run, and after a cancellation,
// which must be over within five seconds.
const (
	stopBudget      = 10 * time.Second
	interruptBudget = 3500 * time.Millisecond
)

// resetPatience bounds the wait for a busy engine to accept a reset.
const resetPatience = 20 * time.Second

// variant is one way to run the workload.
type variant struct {
	key, title string
	mode       string
	offload    bool
}

// How the router chooses; its --mode.
const (
	modeKV         = "kv"
	modeRoundRobin = "round-robin"
)

// variants returns the runs of a demo, which differ in the router's mode and in the tiers that
// are on. With OnlyOurs there is only the first. A hybrid model has one run of its own.
func variants(o *Options) []variant {
	if o.Hybrid {
		return []variant{{"ours", "by cache, all tiers, a sliding window beside full attention", modeKV, true}}
	}
	v := []variant{
		{"ours", "by cache, all tiers", modeKV, true},
		{"round_robin", "round-robin, all tiers", modeRoundRobin, true},
		{"no_offload", "by cache, device only", modeKV, false},
	}
	if o.OnlyOurs {
		return v[:1]
	}
	return v
}

// Run runs the demo: it plays the workload in every variant, each with fresh processes, prints the
// figures side by side and writes the report. It returns nil if every check passed.
func Run(ctx context.Context, o Options) error {
	if err := o.check(); err != nil {
		return err
	}
	requests, name, err := o.workload()
	if err != nil {
		return err
	}
	d, err := cluster.MakeDirs("blockyard-demo", o.Dir, "", uint64(o.Nodes)*o.HostBytes)
	if err != nil {
		return err
	}
	out := &display{out: o.Out, terminal: o.Terminal}
	if !d.InMemory() {
		out.say("host tiers are in %s: too little memory is free", d.Host)
	}
	report := &Report{Workload: name, Seed: o.Seed, SpeedUp: o.SpeedUp, Nodes: o.Nodes, Engines: o.Engines, Reasons: []string{}}
	o.limits = limitsFor(&o, requests)
	watched, cancel := watch(ctx, o.limits.whole)
	defer cancel()
	err = runVariants(watched, &o, d, out, requests, report)
	if err == nil {
		err = conclude(&o, out, report)
	}
	return finish(ctx, &o, out, d, err)
}

// runVariants runs one variant after the other and fills the report with their figures, and with
// the reasons why a variant failed.
func runVariants(ctx context.Context, o *Options, d *cluster.Dirs, out *display, requests []workload.Request, report *Report) error {
	vs := variants(o)
	out.say("%d requests of %s to %d engines on %d nodes", len(requests), report.Workload, o.Engines, o.Nodes)
	out.say("blocks of %d tokens, seed %d, simulated time runs %gx", o.BlockSize, o.Seed, o.SpeedUp)
	for i, v := range vs {
		out.say("run %d of %d: %s", i+1, len(vs), v.title)
		r, err := runOnce(ctx, o, d, out, v, requests)
		if err != nil {
			return err
		}
		reasons, notes := verdict(v.expectation(o), r)
		report.Reasons, report.Notes = append(report.Reasons, reasons...), append(report.Notes, notes...)
		for _, line := range r.divergence {
			fmt.Fprintf(o.Err, "%s: %s\n", v.key, line)
		}
		switch v.key {
		case "ours":
			report.RunReport = *r
		case "round_robin":
			report.RoundRobin = r
		case "no_offload":
			report.NoOffload = r
		}
	}
	report.Passed = len(report.Reasons) == 0
	return nil
}

// conclude prints the report and writes it to --report. It returns ErrFailed when a check failed.
func conclude(o *Options, out *display, report *Report) error {
	out.print(renderReport(report, o.Color))
	if o.Report != "" {
		if err := writeReport(o.Report, report); err != nil {
			return err
		}
	}
	if report.Passed {
		return nil
	}
	for _, reason := range report.Reasons {
		fmt.Fprintln(o.Err, reason)
	}
	return fmt.Errorf("demo: %w (%d reasons)", ErrFailed, len(report.Reasons))
}

// finish ends a demo: it shows the last log lines of a process that failed, removes the
// directories, and keeps and names the logs after a failure. It returns err, or that the demo was
// interrupted.
func finish(ctx context.Context, o *Options, out *display, d *cluster.Dirs, err error) error {
	out.endLine()
	interrupted := ctx.Err() != nil
	keep := o.KeepLogs || (err != nil && !interrupted)
	var child *cluster.Failure
	if errors.As(err, &child) && !interrupted {
		for _, line := range child.Tail {
			fmt.Fprintf(o.Err, "  | %s\n", line)
		}
	}
	if keep {
		fmt.Fprintf(o.Err, "logs: %s\n", d.Logs)
	}
	removed := d.Remove(keep)
	if interrupted {
		return fmt.Errorf("demo: interrupted: %w", ctx.Err())
	}
	return errors.Join(err, removed)
}

// workload returns the requests, read from --trace or generated, and a name for where they come
// from. The error is also a request that does not fit an engine's device.
func (o *Options) workload() ([]workload.Request, string, error) {
	var requests []workload.Request
	var err error
	name := "the built-in workload"
	if o.Trace != "" {
		name = filepath.Base(o.Trace)
		requests, err = workload.ReadMooncakeFile(o.Trace, o.Requests)
		if err != nil {
			err = fmt.Errorf("--trace: %w", err)
		}
	} else {
		requests, err = workload.Generate(workload.Options{Seed: o.Seed, Requests: o.Requests})
	}
	if err != nil {
		return nil, "", err
	}
	blocks := workload.Longest(requests)/o.BlockSize + 2
	if o.Hybrid {
		blocks *= 2 // in each group
	}
	if blocks > o.DeviceBlocks {
		return nil, "", fmt.Errorf("--device-blocks %d: the longest request needs %d blocks of %d tokens", o.DeviceBlocks, blocks, o.BlockSize)
	}
	return requests, name, nil
}

// runOnce plays the workload in one variant with fresh processes, which are
// gone when it returns.
func runOnce(ctx context.Context, o *Options, d *cluster.Dirs, out *display, v variant, requests []workload.Request) (*RunReport, error) {
	rd, err := d.Sub(v.key)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	spec := clusterSpec{
		Options: cluster.Options{
			Programs: o.Programs, NATSURL: o.NATSURL, Name: filepath.Base(d.Work) + "-" + v.key, Dirs: rd, Calls: o.Concurrency,
			Died: func(err error) { cancel(err) },
		},
		nodes: o.Nodes, engines: o.Engines,
		blockSize: o.BlockSize, deviceBlocks: o.DeviceBlocks,
		dropFrames: o.DropFrames, seed: o.Seed, speedUp: o.SpeedUp, prefillRate: o.PrefillRate,
		lookupWait: lookupWait, mode: v.mode,
	}
	if o.Hybrid {
		spec.window = windowBlocks * o.BlockSize
	}
	if v.offload {
		spec.hostBytes, spec.diskBytes = o.HostBytes, o.DiskBytes
	}
	c := &demoCluster{Cluster: cluster.New(spec.Options)}
	r, err := c.measure(ctx, o, out, spec, requests)
	if err != nil {
		err = explain(ctx, err)
		c.Close(interruptBudget)
		return nil, errors.Join(err, rd.Remove(true))
	}
	r.Unclean = c.Close(stopBudget)
	for _, file := range rd.HostFiles() {
		r.Unclean = append(r.Unclean, "left behind "+file)
	}
	return r, rd.Remove(true)
}

// lookupWait is how long the demo's engines wait for blocks from disk.
const lookupWait = 500 * time.Millisecond

// measure starts the cluster's processes, plays the requests, waits until all processes are idle,
// and returns the figures. At half time it resets the cache of one engine.
func (c *demoCluster) measure(ctx context.Context, o *Options, out *display, spec clusterSpec, requests []workload.Request) (*RunReport, error) {
	if err := c.start(ctx, spec); err != nil {
		return nil, err
	}
	calls := &caller{o.limits}
	if err := c.awaitWorkers(ctx); err != nil {
		return nil, err
	}
	rec := &recorder{total: len(requests)}
	p := &player{
		calls: calls, router: c.router.Endpoint, engines: c.byWorker(),
		speedUp: o.SpeedUp, concurrency: o.Concurrency, rec: rec,
	}
	victim := c.engines[0]
	resetErr := errors.New("not reached") // midway replaces it
	p.midway = func(ctx context.Context) { resetErr = victim.resetCache(ctx, calls, resetPatience) }
	stopProgress := out.follow(rec)
	start := time.Now()
	err := p.play(ctx, requests)
	elapsed := time.Since(start)
	stopProgress()
	if err != nil {
		return nil, err
	}
	if resetErr != nil {
		// Under load the engine was never free; now it is.
		if err := victim.resetCache(ctx, calls, resetPatience); err != nil {
			return nil, err
		}
	}
	start = time.Now()
	s, err := c.settle(ctx, o.limits)
	if err != nil {
		return nil, fmt.Errorf("after the last answer: %w", err)
	}
	r := &RunReport{ElapsedS: elapsed.Seconds(), SettleMS: millis(time.Since(start))}
	rec.fillReport(r)
	s.fillReport(r)
	if o.Hybrid {
		return r, c.checkHybrid(ctx, o, requests, r)
	}
	return r, nil
}

func (c *demoCluster) byWorker() map[uint64]*engine {
	m := make(map[uint64]*engine, len(c.engines))
	for _, e := range c.engines {
		m[e.Worker] = e
	}
	return m
}
