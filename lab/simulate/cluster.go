package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
	"github.com/blockyard-ai/blockyard/lab/simulate/partition"
	"github.com/blockyard-ai/blockyard/lab/simulate/policy"
	"github.com/blockyard-ai/blockyard/lab/simulate/report"
)

// cluster is one run.
type cluster struct {
	scenario *Scenario
	policy   policy.Policy
	seed     uint64
	clock    engine.Clock

	nodes   []*engine.Node
	engines map[kv.Worker]*engine.Engine
	list    []*engine.Engine // in the order of joining
	routed  []int            // requests sent to each of list
	routers []*router
	turn    int // of the routers
	// parts divides the index among the routers; nil when each has all of it.
	parts   *partition.Partition
	wire    []byte
	numbers map[kv.Owner]uint64 // of the last event

	// rate is the requests of a worker in a second, reuse the share of their tokens that an infinite
	// cache has, and promptSeconds what the rest takes on a worker of speed 1. They are for the oracle.
	rate, reuse, promptSeconds float64

	open   int // measured prompts without an end
	result report.Result
	hist   struct{ ttft, tbt histogram }
	good   int
	err    error
	// herd integrates the backlogs of equal workers over time.
	herd   herd
	poison poison
	roles  roles
	// explainAt is when the next decision is explained.
	explainAt time.Duration
}

// attempt is a prompt on its way through one worker.
type attempt struct {
	c             *cluster
	p             *prompt
	router        *router
	id            string
	worker        kv.Worker
	began         time.Duration // when the prompt was first sent
	first         time.Duration
	gaps          float64 // seconds
	tokens, tries int
	// firstTry and lastTry are when a worker that died brought the first token, and when it died. Both
	// are 0 without a token.
	firstTry, lastTry time.Duration
	measured          bool
	spoil             spoil // of the message that the first token has come
	request           engine.Request
	prefilled         *engine.Request // on the worker that computes the prompt; nil when one worker does all
}

// maxTries bounds how often a prompt is sent again after its worker died.
const maxTries = 3

// simulate returns the result of one run.
func simulate(s *Scenario, prompts []*prompt, p policy.Policy, seed uint64) (report.Result, error) {
	c, err := newCluster(s, prompts, p, seed)
	if err != nil {
		return report.Result{}, err
	}
	if c.run(); c.err != nil {
		return report.Result{}, fmt.Errorf("scenario %s, policy %s, seed %d: %w", s.Name, p.Name, seed, c.err)
	}
	return c.finish(), nil
}

// newCluster returns a cluster with its workers, and with everything that is to happen.
func newCluster(s *Scenario, prompts []*prompt, p policy.Policy, seed uint64) (*cluster, error) {
	c := &cluster{scenario: s, policy: p, seed: seed, engines: make(map[kv.Worker]*engine.Engine), numbers: make(map[kv.Owner]uint64)}
	c.poison, c.roles, c.explainAt = newPoison(s.Spoiled, seed), newRoles(&s.Hardware, seed), s.WarmUp
	c.count(prompts)
	if s.SplitBy > 0 {
		c.parts = partition.New(s.Routers, s.SplitBy)
	}
	for i := range max(1, s.Routers) {
		r, err := newRouter(c, i)
		if err != nil {
			return nil, err
		}
		c.routers = append(c.routers, r)
	}
	for _, speed := range s.Hardware.Speeds {
		if err := c.join(speed); err != nil {
			return nil, err
		}
	}
	for i := range s.Events {
		c.clock.At(s.Events[i].At, func() { c.happen(&s.Events[i]) })
	}
	for _, p := range prompts {
		if p.starts {
			c.begin(p, 0)
		}
	}
	c.clock.Every(time.Second, c.second)
	c.clock.Every(100*time.Millisecond, func() { c.herd.sample(c) })
	return c, nil
}

// run lets everything happen until the measured prompts have ended: what comes later changes none of their
// numbers. Prompts that are behind get as long again to end.
func (c *cluster) run() {
	c.clock.Then = func() bool {
		for _, r := range c.routers {
			r.collect()
		}
		if c.scenario.Synced {
			c.exchange()
		}
		return c.err == nil && (c.open > 0 || c.clock.Now() < c.scenario.Duration)
	}
	c.clock.Run(2*c.scenario.Duration + time.Minute)
	for _, r := range c.routers {
		r.close()
	}
}

func (c *cluster) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// join adds a worker, on the node of the one before or on a new one.
func (c *cluster) join(speed float64) error {
	h, n := &c.scenario.Hardware, len(c.list)
	if n%h.PerNode == 0 {
		id := uint64(1000 + n)
		o := engine.NodeOptions{ID: id, HostBlocks: h.HostBlocks, DiskBlocks: h.DiskBlocks, BlockBytes: h.blockBytes(), DiskBytes: h.DiskBytes,
			Host: &feed{c, kv.PoolOwner(id), kv.TierHost}, Disk: &feed{c, kv.PoolOwner(id), kv.TierDisk}}
		c.nodes = append(c.nodes, engine.NewNode(&c.clock, o))
	}
	w := kv.Worker{ID: kv.WorkerID(n + 1)}
	e, err := engine.New(&c.clock, c.nodes[len(c.nodes)-1], engine.Options{ID: w, Steps: h.Steps, Speed: speed,
		Noise: h.Noise, Tail: h.Tail, Stalls: h.Stalls, WarmUp: h.WarmUp, BlockSize: h.BlockSize, Blocks: h.Blocks,
		Budget: h.Budget, MaxRunning: h.MaxRunning, HostBytes: h.HostBytes, NetworkBytes: h.NetworkBytes, Seed: c.seed, Device: &feed{c, kv.WorkerOwner(w), kv.TierDevice}})
	if err != nil {
		return err
	}
	c.roles.join(w.ID, h.Prefill)
	c.engines[w], c.list, c.routed = e, append(c.list, e), append(c.routed, 0)
	for _, r := range c.routers {
		if err := r.join(e); err != nil {
			return err
		}
	}
	return nil
}

// count counts what the oracle knows of the workload.
func (c *cluster) count(prompts []*prompt) {
	known, total := 0, 0
	for _, p := range prompts {
		known, total = known+p.known, total+p.tokens
	}
	c.reuse = float64(known) / float64(max(1, total))
	c.result.InfiniteShare = c.reuse
	c.rate = float64(len(prompts)) / c.scenario.Duration.Seconds() / float64(len(c.scenario.Hardware.Speeds))
	c.promptSeconds = float64(total-known) / float64(max(1, len(prompts))) * c.scenario.Hardware.Steps.Milliseconds(2048, 0, 0) / 2048e3
}

// tokensPerSecond returns the true mean prefill rate of the workers.
func (c *cluster) tokensPerSecond() float64 {
	sum := 0.0
	for _, s := range c.scenario.Hardware.Speeds {
		sum += s
	}
	budget := float64(c.scenario.Hardware.Budget)
	return sum / float64(len(c.scenario.Hardware.Speeds)) * budget / c.scenario.Hardware.Steps.Milliseconds(budget, budget*2000, 0) * 1e3
}

// second is what happens each second: reports and the routers' timed work.
func (c *cluster) second() {
	for _, n := range c.nodes {
		c.report(n.Report())
	}
	for _, e := range c.list {
		if !e.Dead() {
			c.report(e.Report())
		}
	}
	for _, r := range c.routers {
		r.tick()
	}
}

// report sends a load report over the wire.
func (c *cluster) report(l kvevent.LoadReport) {
	c.wire = kvevent.AppendLoadReport(c.wire[:0], &l)
	got, err := kvevent.DecodeLoadReport(c.wire)
	if err != nil {
		c.fail(err)
		return
	}
	c.deliver(got)
}

// happen makes an event of the scenario happen.
func (c *cluster) happen(e *Event) {
	switch e.Kind {
	case Add:
		if err := c.join(e.Speed); err != nil {
			c.fail(err)
		}
	case Kill, Drain:
		w := c.list[e.Worker]
		for _, r := range c.routers {
			if err := r.leave(w.ID()); err != nil {
				c.fail(err)
			}
		}
		if e.Kind == Kill {
			w.Kill()
		}
	case Slow:
		c.list[e.Worker].SpeedFactor *= e.Factor
	case Disk:
		for _, n := range c.nodes {
			n.DiskFactor *= e.Factor
		}
	}
}

// begin has a prompt sent at its time, or at t if that is later.
func (c *cluster) begin(p *prompt, t time.Duration) {
	c.clock.At(max(p.at, t), func() { c.send(&attempt{c: c, p: p, began: c.clock.Now()}) })
}

// send routes a prompt and sends it to its worker.
func (c *cluster) send(a *attempt) {
	a.router = c.nextRouter(a.p)
	a.id = fmt.Sprintf("%s/%d", a.p.id, a.tries)
	a.measured = a.began >= c.scenario.WarmUp && a.began < c.scenario.Duration
	if a.measured && a.tries == 0 {
		c.open++
	}
	a.dispatch()
}

// submit sends an attempt to its worker.
func (a *attempt) submit(w kv.Worker) {
	a.worker = w
	a.c.routed[int(w.ID)-1]++
	a.tellSent()
	a.request = engine.Request{Chain: a.p.text, Prompt: a.p.tokens, Output: a.p.output, Source: a.prefilled,
		First: a.onFirst, Block: a.onBlock, Last: a.onLast, Lost: a.onLost, Gap: a.onGap}
	a.c.engines[w].Submit(&a.request)
}

func (a *attempt) onFirst() {
	a.first = a.c.clock.Now()
	a.tellFirst()
	if !a.measured {
		return
	}
	if a.lastTry == 0 {
		a.c.hist.ttft.add(a.first - a.began)
	} else { // its client has seen tokens before the worker died
		a.c.hist.tbt.add(a.first - a.lastTry)
		a.gaps += (a.first - a.lastTry).Seconds()
		a.first = a.firstTry
	}
}

func (a *attempt) onGap(d time.Duration) {
	a.gaps += d.Seconds()
	a.tokens++
	if a.measured {
		a.c.hist.tbt.add(d)
	}
	if now := a.c.clock.Now(); now >= a.c.scenario.WarmUp && now < a.c.scenario.Duration {
		a.c.result.ServedTokens++
	}
}

func (a *attempt) onBlock() { _ = a.router.decide.AddOutputBlock(a.id, nil) }

func (a *attempt) onLast() {
	c := a.c
	a.router.decide.Free(a.id)
	if now := c.clock.Now(); now >= c.scenario.WarmUp && now < c.scenario.Duration {
		c.result.ServedTokens += a.p.tokens
	}
	if a.measured {
		c.open--
		c.result.Requests++
		c.result.Served.Add(a.served())
		tbt := 0.0
		if a.tokens > 0 {
			tbt = a.gaps / float64(a.tokens)
		}
		if a.first-a.began <= c.scenario.Limits.TTFT && tbt <= c.scenario.Limits.TBT.Seconds() {
			c.good++
		}
	}
	for _, fork := range a.p.forks {
		c.begin(fork, c.clock.Now()+fork.think)
	}
	if next := a.p.next; next != nil {
		c.begin(next, c.clock.Now()+next.think)
	}
}

// onLost sends the prompt again: its worker died.
func (a *attempt) onLost() {
	a.router.decide.Free(a.id)
	if a.tries++; a.tries < maxTries {
		retry := &attempt{c: a.c, p: a.p, began: a.began, tries: a.tries, firstTry: a.firstTry, lastTry: a.lastTry}
		if a.first > 0 {
			retry.firstTry, retry.lastTry = cmp.Or(a.firstTry, a.first), a.c.clock.Now()
		}
		a.c.send(retry)
		return
	}
	if a.measured {
		a.c.open--
		a.c.result.Failed++
	}
}

// finish returns the numbers of a run that has ended.
func (c *cluster) finish() report.Result {
	r := &c.result
	r.Unfinished = c.open
	r.TTFTMean, r.TTFTP99 = c.hist.ttft.mean(), c.hist.ttft.quantile(0.99)
	r.TBTMean, r.TBTP99 = c.hist.tbt.mean(), c.hist.tbt.quantile(0.99)
	span := (c.scenario.Duration - c.scenario.WarmUp).Seconds()
	r.Goodput, r.TokensPerSecond = float64(c.good)/span, float64(r.ServedTokens)/span
	r.Herd, r.Balance = c.herd.worst(), c.herd.balance()
	for _, n := range c.nodes {
		r.Moved.DiskRead += n.Moved.DiskRead
		r.Moved.DiskWritten += n.Moved.DiskWritten
		r.Moved.HostToDevice += n.Moved.HostToDevice
		r.Moved.DeviceToHost += n.Moved.DeviceToHost
		r.Moved.Network += n.Moved.Network
	}
	for _, e := range c.list {
		r.Preempted += e.Preempted
	}
	r.Modes = make(map[string]int)
	for _, router := range c.routers {
		for mode, n := range router.modes {
			r.Modes[mode] += n
		}
		r.Decisions = append(r.Decisions, router.explained()...)
	}
	slices.SortStableFunc(r.Decisions, func(a, b report.Decision) int { return cmp.Compare(a.AtMS, b.AtMS) })
	for _, router := range c.routers {
		r.Memberships = append(r.Memberships, router.index.Stats().Memberships)
	}
	return *r
}
