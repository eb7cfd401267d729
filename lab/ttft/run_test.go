package ttft

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// cluster is a run: engines and a router in front of them.
type cluster struct {
	t    *testing.T
	loop loop

	nodes   []*node
	engines map[kv.Worker]*engine

	index     *index.Index
	estimator *estimate.Estimator
	scheduler *schedule.Scheduler
	matches   index.Matches
	wire      []byte

	took  []time.Duration // to the first tokens
	modes map[string]int  // of decisions, without what was missing
}

func newCluster(t *testing.T, hw *hardware, config schedule.Config) *cluster {
	t.Helper()
	c := &cluster{t: t, engines: make(map[kv.Worker]*engine), modes: make(map[string]int)}
	var err error
	if c.index, err = index.New(index.Options{}); err != nil {
		t.Fatal(err)
	}
	if c.estimator, err = estimate.New(estimate.Options{Now: c.loop.clock}); err != nil {
		t.Fatal(err)
	}
	c.scheduler, err = schedule.New(schedule.Options{
		Config: config, Estimator: c.estimator, Load: load.Options{Now: c.loop.clock, Expiry: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, rate := range hw.prefill {
		c.addEngine(i, rate, hw)
	}
	c.loop.every(time.Second, c.report)
	return c
}

// addEngine adds the i-th worker, on the node of the one before or on a new one.
func (c *cluster) addEngine(i int, rate float64, hw *hardware) {
	if i%hw.perNode == 0 {
		n := &node{loop: &c.loop, id: uint64(1000 + i), hw: hw}
		n.host = newCache(c.index, kv.PoolOwner(n.id), kv.TierHost, hw.host)
		n.disk = newCache(c.index, kv.PoolOwner(n.id), kv.TierDisk, hw.disk)
		c.nodes = append(c.nodes, n)
	}
	e := &engine{loop: &c.loop, id: kv.Worker{ID: kv.WorkerID(i + 1)}, rate: rate, node: c.nodes[len(c.nodes)-1]}
	e.device = newCache(c.index, kv.WorkerOwner(e.id), kv.TierDevice, hw.device)
	c.engines[e.id] = e
	if err := c.index.SetMember(e.id, e.node.id, true); err != nil {
		c.t.Fatal(err)
	}
	c.estimator.SetWorker(e.id, e.node.id, "model")
}

// report has every owner report its load, over the wire.
func (c *cluster) report() {
	for _, n := range c.nodes {
		c.send(n.report())
	}
	for _, m := range c.index.Members().List {
		c.send(c.engines[m.Worker].report())
	}
}

func (c *cluster) send(r kvevent.LoadReport) {
	c.wire = kvevent.AppendLoadReport(c.wire[:0], &r)
	got, err := kvevent.DecodeLoadReport(c.wire)
	if err != nil {
		c.t.Fatal(err)
	}
	c.estimator.Report(&got)
}

// route decides where a prompt goes and sends it there.
func (c *cluster) route(number int, p *prompt) {
	id := fmt.Sprint(number)
	c.index.Match(&c.matches, p.locals, index.Continuation)
	result, err := c.scheduler.Schedule(context.Background(), &schedule.Request{
		ID: id, Book: true, Tokens: p.tokens, BlockSize: blockSize, Sequence: p.sequence,
		Members: c.matches.Members, Hits: c.matches.Hits, TrackPrefill: true,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	mode, _, _ := strings.Cut(result.Mode, ":")
	c.modes[mode]++
	c.estimator.Booked(&estimate.Booking{ID: id, Worker: result.Worker, Tokens: p.tokens, BlockSize: blockSize, Hits: result.Hits})
	c.engines[result.Worker].serve(p, func() {
		c.took = append(c.took, c.loop.now-p.at)
		c.estimator.PrefillDone(id)
		if err := c.scheduler.MarkPrefillCompleted(id); err != nil {
			c.t.Fatal(err)
		}
	}, func() {
		c.scheduler.Free(id)
		c.estimator.Dropped(id)
	})
}

// figures are the outcome of a run.
type figures struct {
	requests       int
	mean, p50, p99 time.Duration
	byCost         int
}

func (f figures) String() string {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return fmt.Sprintf("mean %6.0f ms  p50 %6.0f  p99 %6.0f  (%d of %d by cost)", ms(f.mean), ms(f.p50), ms(f.p99), f.byCost, f.requests)
}

// simulate runs prompts on hardware.
func simulate(t *testing.T, hw *hardware, prompts []*prompt, config schedule.Config) figures {
	t.Helper()
	c := newCluster(t, hw, config)
	for i, p := range prompts {
		c.loop.at(p.at, func() { c.route(i, p) })
	}
	c.loop.run()
	if len(c.took) != len(prompts) {
		t.Fatalf("%d first tokens of %d requests", len(c.took), len(prompts))
	}
	if s := c.estimator.Stats(); s.Requests != 0 || s.Unfollowed != 0 || s.Abandoned != 0 {
		t.Fatalf("requests are left: %+v", s)
	}
	slices.Sort(c.took)
	var sum time.Duration
	for _, d := range c.took {
		sum += d
	}
	n := len(c.took)
	return figures{n, sum / time.Duration(n), c.took[n/2], c.took[n*99/100], c.modes[schedule.ModeCost]}
}
