package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

const (
	// warmUp is the load before a measurement, settle the pause behind it, in which requests
	// of the warm-up end.
	warmUp = time.Second
	settle = 300 * time.Millisecond
	// readyTime bounds the start of a router. Some wait long for their workers.
	readyTime = time.Minute
	// exactShare is the least share of prompts that an exact router routes exactly.
	exactShare = 0.99
)

// figures are those of one contender in one round.
type figures struct {
	load         loaded
	cpuNanos     float64 // of the router for each request
	renderNanos  float64 // of the stubs for the tokens of each request
	renders      float64 // calls for tokens for each request
	cachedShare  float64 // of the prompt tokens
	streamsBytes float64 // for each open stream; 0 when not measured
	highest      float64 // rate with less than 1 % errors; 0 when not measured
	note         string
}

// Run measures and writes the figures to o.Out, of which the last line is for scripts. No
// process and no file is left, but for the logs of a run that failed, which o.Out names.
func Run(ctx context.Context, o Options) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	o = o.withDefaults()
	core, err := twoCores()
	if err != nil {
		return err
	}
	if err := pinSelf(core.load); err != nil {
		return err
	}
	dirs, err := cluster.MakeDirs("blockyard-bench-front", o.Dir, "", 0)
	if err != nil {
		return err
	}
	defer func() {
		keep := err != nil && ctx.Err() == nil
		if keep {
			fmt.Fprintf(o.Out, "logs: %s\n", dirs.Logs)
		}
		err = errors.Join(err, dirs.Remove(keep))
	}()
	b := &bench{o: &o, core: core, logs: dirs.Logs}
	chosen := o.chosen()
	rounds := make(map[string][]figures)
	for round := range o.Rounds {
		for i := range chosen {
			// Each round begins with another contender.
			c := &chosen[(i+round)%len(chosen)]
			if o.missing(c) != "" {
				continue
			}
			f, err := b.measure(ctx, c, round)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			rounds[c.name] = append(rounds[c.name], f)
			fmt.Fprintf(o.Progress, "round %d of %d: %s\n", round+1, o.Rounds, rowOf(c, []figures{f}))
		}
	}
	_, err = io.WriteString(o.Out, lines(&o, chosen, rounds))
	return err
}

// bench has what the measurements share.
type bench struct {
	o    *Options
	core cores
	logs string
}

// running is a contender with its stubs.
type running struct {
	*generator
	c       *contender
	stubs   []*cluster.Process
	router  *cluster.Process // nil without a router
	group   int
	metrics cluster.Endpoint
}

// measure starts the contender's processes, measures them for one round, and ends them. Memory of
// streams is measured in the first round only, and the highest rate in the last.
func (b *bench) measure(ctx context.Context, c *contender, round int) (f figures, err error) {
	s := cluster.NewSupervisor(b.logs, nil)
	defer s.Stop(0)
	r, err := b.start(ctx, s, c)
	if err != nil {
		return f, err
	}
	defer r.close()
	m := newMaker(uint64(round), c.noIDs)
	if _, err := r.run(ctx, m.calls(b.o.Rate*warmUp.Seconds()), b.o.Rate); err != nil {
		return f, err
	}
	if err := cluster.Wait(ctx, settle); err != nil {
		return f, err
	}
	if err := b.load(ctx, r, m, &f); err != nil {
		return f, err
	}
	switch {
	case c.noIDs:
		f.note = "refuses token ids: text alone"
	case c.dynamo:
		f.note = "workers of its own protocol, in Python"
	}
	if c.counter != "" {
		if err := r.exactness(ctx, &f); err != nil {
			return f, err
		}
	}
	if round == 0 && !b.o.SkipStreams {
		if err := b.streams(ctx, r, &f); err != nil {
			return f, err
		}
	}
	if round == b.o.Rounds-1 && !b.o.SkipSweep {
		if f.highest, err = b.sweep(ctx, r, m); err != nil {
			return f, err
		}
	}
	if r.router != nil && r.router.Exited() {
		return f, fmt.Errorf("the router has ended (log: %s)", r.router.Log)
	}
	return f, nil
}

// calls returns the next n requests.
func (m *maker) calls(n float64) []call {
	out := make([]call, max(1, int(n)))
	for i := range out {
		out[i] = m.next()
	}
	return out
}

// start starts the stubs, which stand for engines, and the contender's router, and waits until a
// request is answered. The baseline has no router: then requests go to the stubs.
func (b *bench) start(ctx context.Context, s *cluster.Supervisor, c *contender) (*running, error) {
	r := &running{c: c}
	stub, env := b.o.Stub, []string(nil)
	if c.dynamo {
		var err error
		if stub, env, err = b.dynamoWorker(); err != nil {
			return nil, err
		}
	}
	var ready []Ready
	for i := range stubs {
		var one Ready
		p, err := s.StartReady(ctx, cluster.Spec{Name: fmt.Sprintf("%s-stub-%d", c.name, i), Command: pinned(b.core.load, stub), Env: env}, &one)
		if err != nil {
			return nil, err
		}
		r.stubs, ready = append(r.stubs, p), append(ready, one)
	}
	targets := urls(ready)
	if c.command != nil {
		ports, err := freePorts()
		if err != nil {
			return nil, err
		}
		r.router, err = s.Start(cluster.Spec{
			Name: c.name, Command: pinned(b.core.router, c.command(b.o, ready, ports[0], ports[1])), Env: env, Line: func([]byte) {},
		})
		if err != nil {
			return nil, err
		}
		r.group = r.router.PID()
		metrics := ports[1]
		if c.dynamo {
			metrics = ports[0]
		}
		r.metrics = cluster.NewClient(1).At(c.name, local(metrics))
		targets = []string{"http://" + local(ports[0])}
	}
	r.generator = newGenerator(targets)
	if c.dynamo {
		r.stamps = wordStamp
	}
	first := newMaker(1<<32, c.noIDs).next()
	var last error
	err := cluster.Until(ctx, readyTime, 100*time.Millisecond, func() (bool, error) {
		if r.router != nil && r.router.Exited() {
			return false, fmt.Errorf("the router ended before it served (log: %s)", r.router.Log)
		}
		_, last = r.send(ctx, 0, &first)
		return last == nil, nil
	})
	if err != nil {
		return nil, errors.Join(err, last)
	}
	return r, nil
}

// load runs the main load and sets its figures: times of answers, processor time of the router
// per request, and the share of cached tokens.
func (b *bench) load(ctx context.Context, r *running, m *maker, f *figures) error {
	calls := m.calls(b.o.Rate * b.o.Duration.Seconds())
	before, err := r.counts(ctx)
	if err != nil {
		return err
	}
	began, err := r.usage()
	if err != nil {
		return err
	}
	l, err := r.run(ctx, calls, b.o.Rate)
	if err != nil {
		return err
	}
	ended, err := r.usage()
	if err != nil {
		return err
	}
	after, err := r.counts(ctx)
	if err != nil {
		return err
	}
	if len(l.firsts) == 0 {
		return fmt.Errorf("no request of %d was answered in time: %w", l.sent, l.reason)
	}
	n := float64(len(calls))
	f.load = *l
	f.cpuNanos = float64(ended.nanos-began.nanos) / n
	f.renders, f.renderNanos = float64(after.Renders-before.Renders)/n, float64(after.RenderNanos-before.RenderNanos)/n
	f.cachedShare = float64(after.CachedTokens-before.CachedTokens) / float64(max(1, after.PromptTokens-before.PromptTokens))
	return nil
}

// exactness adds a note to the figures when the router itself says that it routed less than
// exactShare of the prompts with knowledge of the caches.
func (r *running) exactness(ctx context.Context, f *figures) error {
	share, words, err := r.c.routed(ctx, r.metrics)
	if err != nil {
		return err
	}
	if share < exactShare {
		f.note = fmt.Sprintf("NOT EXACT: %.0f %% of the counts; %s", 100*share, words)
	}
	return nil
}

// usage returns what the router has used; nothing without a router.
func (r *running) usage() (usage, error) {
	if r.router == nil {
		return usage{}, nil
	}
	return groupUsage(r.group)
}

// counts returns the sums of the stubs' counters.
func (r *running) counts(ctx context.Context) (sum Counts, err error) {
	for _, p := range r.stubs {
		var c Counts
		if err := p.Ask(ctx, struct{}{}, &c); err != nil {
			return sum, err
		}
		sum.PromptTokens, sum.CachedTokens = sum.PromptTokens+c.PromptTokens, sum.CachedTokens+c.CachedTokens
		sum.Renders, sum.RenderNanos = sum.Renders+c.Renders, sum.RenderNanos+c.RenderNanos
		sum.Requests += c.Requests
	}
	return sum, nil
}

// streams sets the router's memory per open stream, in bytes, measured with o.Streams open ones.
func (b *bench) streams(ctx context.Context, r *running, f *figures) error {
	before, err := r.usage()
	if err != nil {
		return err
	}
	return r.hold(ctx, b.o.Streams, func() error {
		after, err := r.usage()
		f.streamsBytes = float64(after.bytes-before.bytes) / float64(b.o.Streams)
		return err
	})
}

const (
	// A sweep has at most sweepSteps steps of sweepTime, each at sweepGrowth times the rate
	// of the one before. It ends at sweepErrors.
	sweepSteps  = 16
	sweepTime   = 2 * time.Second
	sweepGrowth = 1.25
	sweepErrors = 0.01
)

// sweep raises the rate step by step, and returns the highest rate in requests per second at
// which less than 1 % of the requests fail or are late; 0 when the first step fails.
func (b *bench) sweep(ctx context.Context, r *running, m *maker) (highest float64, err error) {
	rate := 2 * b.o.Rate
	for range sweepSteps {
		l, err := r.run(ctx, m.calls(rate*sweepTime.Seconds()), rate)
		if err != nil {
			return highest, err
		}
		fmt.Fprintf(b.o.Progress, "  %s: %.0f requests/s: %.2f %% errors\n", r.c.name, rate, 100*l.errorShare())
		if l.errorShare() >= sweepErrors {
			return highest, nil
		}
		highest = rate
		rate *= sweepGrowth
	}
	return highest, nil
}
