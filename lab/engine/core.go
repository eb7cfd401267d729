package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
)

// Errors that a submitter or a client hears of.
var (
	errFull     = errors.New("too many requests are waiting")
	errStopping = errors.New("engine is shutting down")
	errAborted  = errors.New("request was aborted")
)

const (
	// inboxSize is how many posted functions may wait for the core; a poster
	// waits when there are more.
	inboxSize = 256
	// drainTime is how long a stopping engine goes on with what it has.
	drainTime = 2 * time.Second
)

// core is the scheduler: one goroutine, run, that owns everything in it.
// Others call post.
type core struct {
	opts    Options
	pool    *pool
	device  device
	remote  remote
	publish func(payload []byte)
	giveUp  func() // ends the agent session, so that what waits for it fails
	ctr     *counters

	inbox chan func()
	ended chan struct{}

	waiting []*request // in order of arrival, preempted ones first
	running []*request // in order of admission
	talks   int        // conversations that are not over
	numbers uint64     // requests so far
	scratch []int32
	due     time.Time // when the last step had to end; zero after an idle moment

	stopping bool
	deadline *time.Timer // of the drain
}

func newCore(o Options, d device, r remote, publish func([]byte), giveUp func(), ctr *counters) *core {
	return &core{
		opts:    o,
		pool:    newPool(o.DeviceBlocks, int(o.Namespace.BlockSize)),
		device:  d,
		remote:  r,
		publish: publish,
		giveUp:  giveUp,
		ctr:     ctr,
		inbox:   make(chan func(), inboxSize),
		ended:   make(chan struct{}),
	}
}

// post has run call f. It waits for room in the inbox, and drops f once run
// has returned.
func (c *core) post(f func()) {
	select {
	case c.inbox <- f:
	case <-c.ended:
	}
}

// run steps while there is something to compute and waits for the inbox
// otherwise. When ctx ends it takes no more requests, goes on with those it has
// for at most drainTime, fails the rest, and returns when nothing is held any
// more.
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

// drain begins the end.
func (c *core) drain() {
	c.stopping = true
	c.deadline = time.AfterFunc(drainTime, func() { c.post(c.failAll) })
}

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

// quiet reports whether nothing is under way: no request, no conversation, no
// event that has not been handed to the publisher.
func (c *core) quiet() bool {
	return len(c.waiting) == 0 && len(c.running) == 0 && c.talks == 0 && len(c.pool.events) == 0
}

// submit queues a request.
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

// abort ends a request early, because its client has gone or the engine stops.
// Blocks that a load is writing stay taken until it reports.
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

// end takes r out of the scheduler, gives back what it holds and tells its
// client.
func (c *core) end(r *request, u update) {
	drop := func(o *request) bool { return o == r }
	c.running = slices.DeleteFunc(c.running, drop)
	c.waiting = slices.DeleteFunc(c.waiting, drop)
	c.vacate(r)
	r.phase = ended
	r.tell(u)
}

// vacate releases r's blocks and ends its conversation.
func (c *core) vacate(r *request) {
	c.pool.release(r.blocks)
	r.blocks = nil
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

// reset drops the prefix cache; false when a block is in use.
func (c *core) reset() bool {
	if !c.pool.reset() {
		c.ctr.add(&c.ctr.ResetsRefused, 1)
		return false
	}
	c.ctr.add(&c.ctr.Resets, 1)
	return true
}

// publishEvents hands what happened to the pool to the publisher: one batch,
// or nothing when nothing happened.
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

// snapshot returns the engine's state for people and for comparison with what
// others believe of it.
func (c *core) snapshot() State {
	s := State{
		WorkerID: uint64(c.opts.Worker.ID),
		Rank:     uint32(c.opts.Worker.Rank),
		Blocks:   hexHashes(c.pool.resident()),
		Idle:     c.quiet(),
		Stats:    c.snapshotStats(),
	}
	s.Stats.DeviceResident = len(s.Blocks)
	return s
}

// snapshotStats returns what was counted, and all gauges but DeviceResident.
func (c *core) snapshotStats() Stats {
	s := c.ctr.snapshot()
	s.DeviceBlocks = len(c.pool.blocks)
	s.DeviceFree = c.pool.free.n
	s.RequestsRunning = len(c.running)
	s.RequestsWaiting = len(c.waiting)
	return s
}

// step is one scheduler step: it decides what to compute, computes it in the
// time that it would take, and publishes what happened to the cache. It returns
// false when there was nothing to compute and nothing to tell. A cache that was
// reset while the engine was idle is told by an empty step.
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

// maxLag is how much lateness steps make up for.
const maxLag = 10 * time.Millisecond

// stepStart returns when a step that begins now should have begun: when the last
// one was due to end, unless the engine was idle in between. Timers are late by
// up to a millisecond, which is longer than a step that is sped up; this way the
// lateness does not add up.
func (c *core) stepStart(now time.Time) time.Time {
	if now.Sub(c.due) < maxLag {
		return c.due
	}
	return now
}

// schedule gives out the step's token budget, to running requests first, and
// returns how much of it was used.
func (c *core) schedule() int {
	budget := c.opts.MaxBatchedTokens
	preempted := false
	for i := 0; i < len(c.running) && budget > 0; i++ {
		r := c.running[i]
		n := min(r.left(), budget)
		for !c.grow(r, n) {
			preempted = true
			if c.preemptLast() == r {
				return c.opts.MaxBatchedTokens - budget
			}
		}
		r.scheduled = n
		budget -= n
	}
	if !preempted {
		budget = c.admit(budget)
	}
	return c.opts.MaxBatchedTokens - budget
}

// grow gives r the blocks that n more tokens need; false when there are not
// enough.
func (c *core) grow(r *request, n int) bool {
	need := c.blocksFor(r.computed+n) - len(r.blocks)
	if need <= 0 {
		return true
	}
	if !c.pool.fits(need, nil) {
		return false
	}
	r.blocks = c.pool.take(r.blocks, need)
	return true
}

// blocksFor returns how many blocks n tokens take.
func (c *core) blocksFor(n int) int { return (n + c.pool.blockSize - 1) / c.pool.blockSize }

// preemptLast takes everything from the request that was admitted last and
// queues it in front of all others. It has not been scheduled in this step:
// only those before it have.
func (c *core) preemptLast() *request {
	r := c.running[len(c.running)-1]
	c.running = c.running[:len(c.running)-1]
	c.requeue(r)
	c.waiting = slices.Insert(c.waiting, 0, r)
	return r
}

// requeue makes r start over in a new generation. It keeps its output so far.
func (c *core) requeue(r *request) {
	c.ctr.add(&c.ctr.Preempted, 1)
	c.vacate(r)
	r.generation++
	r.phase = queued
}

// compute leaves in device memory what the step's forward pass would leave
// there: the bytes of every block that becomes full.
func (c *core) compute() {
	for _, r := range c.running {
		full := (r.computed + r.scheduled) / c.pool.blockSize
		for n := r.cached; n < full; n++ {
			c.device.compute(r.blocks[n], r.seq.ids[n].key)
		}
	}
}

// finishStep makes what was computed findable, offers it to the agent, and
// samples one token for each request that has caught up with its tokens.
func (c *core) finishStep() {
	for _, r := range slices.Clone(c.running) {
		if r.scheduled == 0 {
			continue
		}
		r.computed += r.scheduled
		r.scheduled = 0
		if full := r.computed / c.pool.blockSize; full > r.cached {
			c.cacheBlocks(r, full)
		}
		c.offer(r)
		if r.left() == 0 {
			c.sample(r)
		}
	}
}

// cacheBlocks makes r's blocks up to end findable.
func (c *core) cacheBlocks(r *request, end int) {
	first := r.cached
	c.pool.store(r.blocks[first:end], r.seq.ids[first:end], r.parentOf(first), r.blockTokens(first, end))
	r.cached = end
}

// offer has the agent store what it has not been offered in this attempt. Blocks
// found on the device are offered too: the agent may have lost them, or be a new
// one.
func (c *core) offer(r *request) {
	if r.talk == nil || r.offered == r.cached {
		return
	}
	blocks := slices.Clone(r.blocks[r.offered:r.cached])
	c.pool.touch(blocks)
	ok := r.talk.store(r.offered, blocks, r.blockTokens(0, r.cached), func() {
		c.post(func() { c.pool.release(blocks) })
	})
	if !ok {
		c.ctr.add(&c.ctr.StoresOverflow, uint64(len(blocks)))
		c.pool.release(blocks)
	}
	r.offered = r.cached
}

// sample makes the next output token, and ends the request with its last one.
func (c *core) sample(r *request) {
	i := len(r.seq.tokens) - r.prompt
	if i == 0 {
		served := r.served
		r.tell(update{served: &served})
	}
	r.seq.push(outputToken(r.seed, i))
	if i+1 == r.want {
		c.ctr.add(&c.ctr.Finished, 1)
		c.end(r, update{output: r.seq.tokens[r.prompt:]})
	}
}
