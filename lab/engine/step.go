package engine

import (
	"slices"
	"time"
)

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
		c.ctr.steps.Add(1)
		c.ctr.tokens.Add(uint64(tokens))
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

// stepStart is when a step that begins now should have begun: when the last
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

// blocksFor is how many blocks n tokens take.
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
	c.ctr.preempted.Add(1)
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
		c.ctr.storesOverflow.Add(uint64(len(blocks)))
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
		c.ctr.finished.Add(1)
		c.end(r, update{output: r.seq.tokens[r.prompt:]})
	}
}
