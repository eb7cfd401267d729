package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
)

// Errors for submitters and clients.
var (
	errFull     = errors.New("too many requests are waiting")
	errStopping = errors.New("engine is shutting down")
	errAborted  = errors.New("request was aborted")
)

const (
	// inboxSize bounds the posted functions that wait for the core. With a full inbox post
	// waits.
	inboxSize = 256
	// drainTime bounds the time that a stopping engine spends on accepted requests.
	drainTime = 2 * time.Second
)

// core is the scheduler. Its goroutine, run, owns everything in it. Other goroutines
// call post.
type core struct {
	opts    Options
	pool    *pool
	device  device
	remote  remote
	publish func(payload []byte)
	giveUp  func() // ends the agent session, so that waiting calls fail
	ctr     *counters

	inbox chan func()
	ended chan struct{}

	waiting []*request // in order of arrival; preempted requests first
	running []*request // in order of admission
	talks   int        // conversations that have not ended
	numbers uint64     // requests so far
	scratch []int32
	due     time.Time // when the last step was due to end; zero after an idle moment

	stopping bool
	deadline *time.Timer // of the drain
}

// newCore returns the scheduler of an engine. publish gets each encoded batch of events. giveUp
// ends the agent session. The caller starts run.
func newCore(o Options, d device, r remote, publish func([]byte), giveUp func(), ctr *counters) *core {
	return &core{
		opts:    o,
		pool:    newPool(o.DeviceBlocks, int(o.Namespace.BlockSize), modelGroups(&o.Namespace)),
		device:  d,
		remote:  r,
		publish: publish,
		giveUp:  giveUp,
		ctr:     ctr,
		inbox:   make(chan func(), inboxSize),
		ended:   make(chan struct{}),
	}
}

// post has run call f. It waits for room in the inbox. After run has returned it drops
// f.
func (c *core) post(f func()) {
	select {
	case c.inbox <- f:
	case <-c.ended:
	}
}

// run steps while there is something to compute, and otherwise waits for the inbox.
// When ctx ends it accepts no more requests, goes on with the accepted ones for at most
// drainTime and fails the rest. It returns when nothing is held any more.
func (c *core) run(ctx context.Context) {
	defer close(c.ended)
	defer context.AfterFunc(ctx, func() { c.post(c.drain) })()
	for !c.stopping || !c.quiet() {
		if !c.step() {
			f := <-c.inbox
			f()
		}
		c.drainInbox()
	}
	c.deadline.Stop()
}

// drain begins the end of run.
func (c *core) drain() {
	c.stopping = true
	c.deadline = time.AfterFunc(drainTime, func() { c.post(c.failAll) })
}

// drainInbox calls the posted functions that wait, and does not wait for more.
func (c *core) drainInbox() {
	for {
		select {
		case f := <-c.inbox:
			f()
		default:
			return
		}
	}
}

// quiet reports whether there is no request, no conversation, and no event that the publisher
// does not have yet.
func (c *core) quiet() bool {
	return len(c.waiting) == 0 && len(c.running) == 0 && c.talks == 0 && len(c.pool.events) == 0
}

// submit queues a request. The error says that the engine stops or that too many requests wait.
func (c *core) submit(r *request) error {
	switch {
	case c.stopping:
		c.ctr.add(&c.ctr.Refused, 1)
		return errStopping
	case len(c.waiting) >= c.opts.MaxWaiting:
		c.ctr.add(&c.ctr.Refused, 1)
		return errFull
	}
	c.ctr.add(&c.ctr.Requests, 1)
	c.numbers++
	r.number = c.numbers
	c.waiting = append(c.waiting, r)
	return nil
}

// abort ends a request early, for a client that has gone or an engine that stops.
// Blocks that a load writes stay taken until the load reports.
func (c *core) abort(r *request) {
	if r.phase == ended {
		return
	}
	r.aborted = true
	if r.phase != loading {
		c.ctr.add(&c.ctr.Aborted, 1)
		c.end(r, update{err: errAborted})
	}
}

// end ends the request r: it leaves the scheduler, its device blocks become free, and its client
// gets the last update u.
func (c *core) end(r *request, u update) {
	drop := func(o *request) bool { return o == r }
	c.running = slices.DeleteFunc(c.running, drop)
	c.waiting = slices.DeleteFunc(c.waiting, drop)
	c.vacate(r)
	r.phase = ended
	r.tell(u)
}

// vacate releases r's device blocks and ends its conversation with the agent, at its end or
// before it starts again. r.after tells the next attempt when this conversation is over.
func (c *core) vacate(r *request) {
	c.pool.release(r.blocks)
	c.pool.release(r.window)
	r.blocks, r.window = nil, nil
	r.computed, r.cached, r.offered, r.scheduled = 0, 0, 0, 0
	r.hit, r.lookups = lookupHit{}, 0
	if r.talk != nil {
		r.after = r.talk.over()
		r.talk.close()
		r.talk = nil
	}
}

// failAll ends every request and the session with the agent.
func (c *core) failAll() {
	c.giveUp()
	for _, r := range slices.Concat(c.running, c.waiting) {
		c.abort(r)
	}
}

// reset drops all cached blocks, as vLLM's /reset_prefix_cache does. It returns false, and drops
// nothing, while a request uses a block.
func (c *core) reset() bool {
	if !c.pool.reset() {
		c.ctr.add(&c.ctr.ResetsRefused, 1)
		return false
	}
	c.ctr.add(&c.ctr.Resets, 1)
	return true
}

// publishEvents publishes what has changed in the cache since the last call as one batch of
// events, in vLLM's encoding.
func (c *core) publishEvents() {
	events := c.pool.takeEvents()
	if len(events) == 0 {
		return
	}
	c.publish(engineevent.AppendBatch(nil, &engineevent.Batch{
		Timestamp: float64(time.Now().UnixMicro()) / 1e6,
		Rank:      c.opts.Worker.Rank,
		HasRank:   true,
		Events:    events,
	}))
}

// snapshot returns the state that GET /v1/state shows, counters included.
func (c *core) snapshot() State {
	s := State{
		WorkerID: uint64(c.opts.Worker.ID),
		Rank:     uint32(c.opts.Worker.Rank),
		Blocks:   hexHashes(c.pool.resident(c.pool.full())),
		Idle:     c.quiet(),
		Stats:    c.snapshotStats(),
	}
	if c.pool.hybrid() {
		s.WindowBlocks = hexHashes(c.pool.resident(window))
	}
	s.Stats.DeviceResident = len(s.Blocks)
	return s
}

// snapshotStats returns the counters, and all gauges but DeviceResident, which takes longer to
// count.
func (c *core) snapshotStats() Stats {
	s := c.ctr.snapshot()
	s.DeviceBlocks = len(c.pool.blocks)
	s.DeviceFree = c.pool.free.n
	s.RequestsRunning = len(c.running)
	s.RequestsWaiting = len(c.waiting)
	return s
}

// step is one scheduler step. It chooses tokens, computes them in simulated time, and
// publishes the changes of the cache. It returns false when there was nothing to
// compute and nothing to publish. A reset of an idle engine is published by an empty
// step.
func (c *core) step() bool {
	start := c.stepStart(time.Now())
	tokens := c.schedule()
	if tokens == 0 && len(c.pool.events) == 0 {
		c.due = time.Time{}
		return false
	}
	if tokens > 0 {
		c.ctr.add(&c.ctr.Steps, 1)
		c.ctr.add(&c.ctr.Tokens, uint64(tokens))
	}
	c.compute()
	c.due = start.Add(c.opts.stepTime(tokens))
	if rest := time.Until(c.due); rest > 0 {
		time.Sleep(rest)
	}
	c.finishStep()
	c.publishEvents()
	return true
}

// maxLag bounds the lateness that steps catch up with.
const maxLag = 10 * time.Millisecond

// stepStart returns the start of a step that begins now: the time when the last step
// was due to end, unless the engine was idle. Timers are late by up to a millisecond,
// which is longer than a step that is sped up. Otherwise the lateness would add up.
func (c *core) stepStart(now time.Time) time.Time {
	if now.Sub(c.due) < maxLag {
		return c.due
	}
	return now
}

// schedule chooses the tokens of the next step: it spends the token budget on running requests
// first, then on waiting ones, and returns the tokens that it spent. Without free device blocks
// it preempts the last running request.
func (c *core) schedule() int {
	budget := c.opts.MaxBatchedTokens
	preempted := false
	for i := 0; i < len(c.running) && budget > 0; i++ {
		r := c.running[i]
		n := min(r.left(), budget)
		for !c.grow(r, n) {
			preempted = true
			if c.preemptLast() == r { // r was the last, so nothing after it runs
				return c.opts.MaxBatchedTokens - budget
			}
		}
		r.scheduled = n
		budget -= n
	}
	if !preempted { // a new request would only preempt again
		budget = c.admit(budget)
	}
	return c.opts.MaxBatchedTokens - budget
}

// preemptLast takes all blocks of the request that was admitted last and queues it
// before all others. That request is not scheduled in this step yet.
func (c *core) preemptLast() *request {
	r := c.running[len(c.running)-1]
	c.running = c.running[:len(c.running)-1]
	c.requeue(r)
	c.waiting = slices.Insert(c.waiting, 0, r)
	return r
}

// requeue makes r start over in a new generation. r keeps its output.
func (c *core) requeue(r *request) {
	c.ctr.add(&c.ctr.Preempted, 1)
	c.vacate(r)
	r.generation++
	r.phase = queued
}

// compute writes the bytes of every device block that becomes full in this step. The bytes follow
// from the block's key, so that a later copy can be verified.
func (c *core) compute() {
	for _, r := range c.running {
		full := (r.computed + r.scheduled) / c.pool.blockSize
		for n := r.cached; n < full; n++ {
			key := r.seq.ids[n].key
			c.device.compute(r.blocks[n], key.InGroup(uint32(c.pool.full())))
			if c.pool.hybrid() && r.window[n] != none {
				c.device.compute(r.window[n], key.InGroup(uint32(window)))
			}
		}
	}
}

// finishStep ends a step: the blocks that it filled become findable on the device and are offered
// to the agent, and each request without tokens left to compute gets one output token.
func (c *core) finishStep() {
	for _, r := range slices.Clone(c.running) {
		if r.scheduled == 0 {
			continue
		}
		before := r.computed
		r.computed += r.scheduled
		r.scheduled = 0
		if full := r.computed / c.pool.blockSize; full > r.cached {
			c.cacheBlocks(r, full)
		}
		c.offer(r)
		c.offerWindows(r, before)
		c.slide(r)
		if r.left() == 0 {
			c.sample(r)
		}
	}
}

// offer has the agent store every full block of r, of full attention, that was not offered since r was
// last admitted. That includes blocks found on the device, because the agent may have lost them or be
// a new one.
func (c *core) offer(r *request) {
	if r.talk != nil && r.offered < r.cached {
		c.offerPart(r, part{c.pool.full(), r.offered, r.blocks[r.offered:r.cached]})
		r.offered = r.cached
	}
}

// offerPart has the agent store blocks of r. They stay referenced during the copy.
func (c *core) offerPart(r *request, p part) {
	p.blocks = slices.Clone(p.blocks)
	c.pool.touch(p.blocks)
	ok := r.talk.store(p, r.blockTokens(0, r.cached), func() {
		c.post(func() { c.pool.release(p.blocks) })
	})
	if !ok {
		c.ctr.add(&c.ctr.StoresOverflow, uint64(len(p.blocks)))
		c.pool.release(p.blocks)
	}
}

// sample makes the next output token of r. The first tells the client where the prompt's KV came
// from; the last ends the request.
func (c *core) sample(r *request) {
	i, last := len(r.seq.tokens)-r.prompt, r.last()
	if i == 0 {
		served := r.served
		r.tell(update{served: &served})
	}
	r.seq.push(outputToken(r.seed, i))
	if last {
		c.ctr.add(&c.ctr.Finished, 1)
		c.end(r, update{output: r.seq.tokens[r.prompt:]})
	}
}
