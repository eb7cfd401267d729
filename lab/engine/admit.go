package engine

import "slices"

// maxLookups bounds the lookups of one attempt. A second one is needed when the device
// evicts blocks of the request while it waits.
const maxLookups = 2

// admit moves waiting requests on, in order, and starts to run those that can compute. budget is the
// number of tokens left in the step; admit returns what it did not spend. Later requests overtake a
// request that waits for the agent. They do not overtake a request that lacks device blocks, unless
// they hold blocks already.
func (c *core) admit(budget int) int {
	active := c.active()
	full := false // an earlier request lacks device blocks
	kept := c.waiting[:0]
	for _, r := range c.waiting {
		if r.phase == queued && !full && budget > 0 && active < c.opts.MaxSeqs {
			active++
			c.ask(r)
		}
		n := 0
		switch {
		case budget == 0:
		case r.phase == answered && !full:
			var room bool
			n, room = c.place(r, budget)
			full = !room
		case r.phase == loaded:
			n = c.resume(r, budget)
		}
		if n == 0 { // r computes nothing in this step and waits on
			kept = append(kept, r)
			continue
		}
		r.phase, r.scheduled = running, n
		c.running = append(c.running, r)
		budget -= n
	}
	clear(c.waiting[len(kept):])
	c.waiting = kept
	return budget
}

// active returns the number of requests that count against MaxSeqs: those that run, ask the agent
// or load.
func (c *core) active() int {
	n := len(c.running)
	for _, r := range c.waiting {
		if r.phase != queued {
			n++
		}
	}
	return n
}

// ask begins an attempt to run r: it looks for the prompt's blocks on the device and asks the agent
// which of the others it holds. The answer comes later, through the core's inbox.
func (c *core) ask(r *request) {
	c.scratch = c.pool.match(c.scratch[:0], r.hittable())
	first := len(c.scratch)
	if r.talk == nil {
		c.converse(r)
	}
	r.lookups++
	r.hit = lookupHit{first: first}
	r.phase = answered
	if count := len(r.hittable()) - first; r.talk != nil && count > 0 {
		r.phase = asking
		r.talk.lookup(first, count, func(h lookupHit) {
			c.post(func() {
				if r.phase == asking { // r has not been aborted meanwhile
					r.hit, r.phase = h, answered
				}
			})
		})
	}
}

// converse opens r's conversation with the agent: all calls about this attempt. r.talk stays nil
// without an agent.
func (c *core) converse(r *request) {
	r.talk = c.remote.open(attempt{
		request:    r.number,
		generation: r.generation,
		tokens:     r.blockTokens(0, len(r.seq.ids)),
		after:      r.after,
		ended:      func() { c.post(func() { c.talks-- }) },
	})
	if r.talk != nil {
		c.talks++
	}
}

// place gives r its first device blocks, after the agent has answered. It returns n, the tokens
// that r computes in this step, at most budget. n is 0 when blocks must be loaded first: place
// starts that load. room is false when too few blocks are free; then r waits.
func (c *core) place(r *request, budget int) (n int, room bool) {
	local := c.pool.match(c.scratch[:0], r.hittable())
	c.scratch = local
	if pinned := len(r.hit.sources); pinned > 0 {
		// Since the lookup the device may have lost blocks before the agent's, which leaves a gap.
		switch stale := len(local) < r.hit.first; {
		case stale && r.lookups < maxLookups:
			r.talk.release(r.hit.first, pinned)
			c.ask(r)
			return 0, true
		case !stale && len(r.hit.beyond(len(local))) > 0:
			return 0, c.startLoad(r, local)
		}
		r.talk.release(r.hit.first, pinned)
		r.hit.sources = nil
	}
	computed := len(local) * c.pool.blockSize
	n = min(len(r.seq.tokens)-computed, budget)
	if !c.occupy(r, local, c.blocksFor(computed+n)-len(local), 0) {
		return 0, false
	}
	r.countServed(len(local), nil)
	return n, true
}

// occupy gives r the cached device blocks local, which hold the start of its tokens, and n more
// blocks for other tokens, the first outside of which the window does not need. It returns false,
// and changes nothing, when too few are free.
func (c *core) occupy(r *request, local []int32, n, outside int) bool {
	found := c.pool.matchWindow(nil, r.seq.ids[:len(local)])
	if !c.pool.fits(n*len(c.pool.groups)-outside, slices.Concat(local, found)) {
		return false
	}
	c.pool.touch(local)
	c.pool.touch(found)
	r.blocks, r.window = append(r.blocks, local...), append(r.window, found...)
	c.take(r, n, outside)
	r.cached = len(local)
	r.computed = len(local) * c.pool.blockSize
	return true
}

// startLoad loads into new device blocks the blocks that the agent holds after local, the blocks
// found on the device. r continues in loadDone. startLoad returns false, and starts nothing, when
// too few device blocks are free.
func (c *core) startLoad(r *request, local []int32) bool {
	sources := r.hit.beyond(len(local))
	first, end := len(local), len(local)+len(sources)
	outside := max(c.pool.windowStart(end)-first, 0)
	if !c.occupy(r, local, len(sources), outside) {
		return false
	}
	parts := []part{{c.pool.full(), first, r.blocks[first:end]}}
	if c.pool.hybrid() {
		parts = append(parts, part{window, first + outside, r.window[first+outside : end]})
	}
	r.phase = loading
	pinnedFirst, pinned := r.hit.first, len(r.hit.sources)
	talk := r.talk
	talk.load(parts, r.seq.ids, func(good int) {
		c.post(func() {
			talk.release(pinnedFirst, pinned)
			r.countServed(first, sources[:good])
			c.loadDone(r, good)
		})
	})
	return true
}

// loadDone ends a load of r. The first good blocks arrived with the right bytes and are cached
// now. r computes the tokens of the others.
func (c *core) loadDone(r *request, good int) {
	if good > 0 {
		c.cacheBlocks(r, r.cached+good)
		r.computed = r.cached * c.pool.blockSize
	} else {
		c.truncateWindow(r)
	}
	r.phase = loaded
	if r.aborted { // its client left while the load wrote the blocks
		c.abort(r)
	}
}

// resume returns the tokens that r, whose load is done, computes in this step, at most budget. It
// returns 0 when no device block is free for them. If no running request can free blocks later, a
// request that only holds loaded blocks loses them, because otherwise all would wait for ever.
func (c *core) resume(r *request, budget int) int {
	n := min(r.left(), budget)
	for !c.grow(r, n) {
		if len(c.running) > 0 || !c.evictLoaded(r) {
			return 0
		}
	}
	return n
}

// evictLoaded takes the device blocks from the last waiting request, other than r, that holds loaded
// blocks; that request starts again. It returns false when there is none.
func (c *core) evictLoaded(r *request) bool {
	for i := len(c.waiting) - 1; i >= 0; i-- {
		if v := c.waiting[i]; v != r && v.phase == loaded {
			c.requeue(v)
			return true
		}
	}
	return false
}

// grow gives r the device blocks for n more tokens. It returns false, and changes nothing, when
// too few are free.
func (c *core) grow(r *request, n int) bool {
	need := c.blocksFor(r.computed+n) - len(r.blocks)
	if need <= 0 {
		return true
	}
	if !c.pool.fits(need*len(c.pool.groups), nil) {
		return false
	}
	c.take(r, need, 0)
	return true
}

// blocksFor returns how many blocks n tokens take.
func (c *core) blocksFor(n int) int { return (n + c.pool.blockSize - 1) / c.pool.blockSize }
