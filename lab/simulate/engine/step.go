package engine

import (
	"math"
	"time"
)

// batch is what a step computes.
type batch struct {
	prompt, decodes int     // tokens
	pairs, context  float64 // what they attend to
}

// kick starts a step unless one runs or there is nothing to do.
func (e *Engine) kick() {
	if e.busy || e.dead {
		return
	}
	b := e.plan()
	if b.prompt+b.decodes == 0 {
		return
	}
	e.busy = true
	took := e.duration(b)
	e.stepAt = e.clock.now
	if b.prompt >= e.options.Budget/2 {
		e.secondsPerToken += (took.Seconds()/float64(b.prompt) - e.secondsPerToken) / 32
	}
	e.clock.After(took, e.finish)
}

// plan chooses the requests of the next step, first those that run, and takes the blocks for them.
func (e *Engine) plan() (b batch) {
	e.device.computing = true
	defer func() { e.device.computing = false }()
	e.stepped = e.stepped[:0]
	budget, preempted := e.options.Budget, false
	for i := 0; i < len(e.running) && budget > 0; i++ {
		r := e.running[i]
		want := min(budget, max(1, r.target-r.tokens))
		for !e.grow(r, r.tokens+want) {
			last := len(e.running) - 1
			e.preempt(e.running[last])
			e.running = e.running[:last]
			preempted = true
			if last == i {
				return b
			}
		}
		budget -= want
		e.step(r, want, &b)
	}
	for !preempted && budget > 0 && len(e.waiting) > 0 && len(e.running) < e.options.MaxRunning {
		r := e.waiting[0]
		took, ok := e.admit(r, budget)
		if !ok {
			break
		}
		e.waiting = e.waiting[1:]
		e.running = append(e.running, r)
		budget -= took
		e.step(r, took, &b)
	}
	return b
}

// step adds a request to the step that is planned. The blocks that the step fills are cached already, as
// in vLLM: a request that is admitted to the same step or a later one does not compute them.
func (e *Engine) step(r *Request, tokens int, b *batch) {
	r.chunk = tokens
	if full := min((r.tokens+tokens)/e.options.BlockSize, len(r.Numbers)); full > r.named {
		e.device.name(r.Chain, r.named, full)
		r.anonymous -= full - r.named
		r.named = full
	}
	e.stepped = append(e.stepped, r)
	if !r.decodes() {
		b.prompt += tokens
		b.pairs += float64(tokens) * (float64(r.tokens) + float64(tokens)/2)
		return
	}
	b.decodes++
	b.context += float64(r.tokens)
}

// decodes reports whether the next step computes only the request's last token.
func (r *Request) decodes() bool { return r.generated > 0 && r.target-r.tokens == 1 }

// grow takes the blocks that a request needs for a number of tokens.
func (e *Engine) grow(r *Request, tokens int) bool {
	need := e.blocksOf(tokens) - r.named - r.anonymous
	if need <= 0 {
		return true
	}
	if !e.device.take(need) {
		return false
	}
	r.anonymous += need
	return true
}

// admit begins to compute a request that waits: it references the blocks that the device has, and
// takes those of the first chunk. It returns the tokens of the chunk.
func (e *Engine) admit(r *Request, budget int) (tokens int, ok bool) {
	have := e.device.blocks.prefix(r.Numbers[:(r.target-1)/e.options.BlockSize])
	e.device.pin(r.Numbers[:have])
	r.named, r.tokens = have, have*e.options.BlockSize
	tokens = min(budget, r.target-r.tokens)
	if !e.grow(r, r.tokens+tokens) {
		e.device.unpin(r.Numbers[:have])
		r.named, r.tokens = 0, 0
		return 0, false
	}
	if r.generated == 0 && r.Cached == (Served{}) {
		e.count(r, have)
	}
	return tokens, true
}

// count says where the tokens of a prompt come from, of which the device has blocks.
func (e *Engine) count(r *Request, have int) {
	size := e.options.BlockSize
	disk := min(have, r.fromDisk)
	host := min(have-disk, r.fromHost)
	network := min(have-disk-host, r.fromNetwork)
	r.Cached = Served{Device: (have - host - disk - network) * size, Host: host * size, Disk: disk * size, Network: network * size, Computed: r.Prompt - have*size}
}

// preempt takes the blocks of a request and has it wait at the front. All of its tokens are computed
// again, but for those of blocks that stay.
func (e *Engine) preempt(r *Request) {
	e.Preempted++
	e.device.unpin(r.Numbers[:r.named])
	e.device.give(r.anonymous)
	r.named, r.anonymous, r.target, r.tokens = 0, 0, r.Prompt+r.generated, 0
	e.waiting = append([]*Request{r}, e.waiting...)
}

// duration returns how long the step takes: as recorded, or with padding of the batch, noise and stalls.
func (e *Engine) duration(b batch) time.Duration {
	o := &e.options
	if ms, ok := o.Steps.Draw(e.rng, float64(b.prompt+b.decodes), b.pairs, b.context); ok {
		return time.Duration(ms * 1e6 / e.Speed())
	}
	decodes := b.decodes
	if b.prompt == 0 {
		decodes = padded(decodes)
	}
	ms := o.Steps.Milliseconds(float64(b.prompt+decodes), b.pairs, b.context) / e.Speed()
	if o.Noise > 0 {
		ms *= math.Exp(o.Noise * e.rng.NormFloat64())
	}
	if o.Tail > 0 && e.rng.Float64() < o.Tail {
		ms *= 2 + 2*e.rng.Float64()
	}
	if o.Stalls > 0 && e.rng.Float64() < o.Stalls*ms/1e3 {
		ms += 50 + 350*e.rng.Float64()
	}
	if e.steps < o.WarmUp {
		ms *= 4 - 3*float64(e.steps)/float64(o.WarmUp)
	}
	e.steps++
	return time.Duration(ms * 1e6)
}

// padded returns the batch size of the graph that computes n decoding requests.
func padded(n int) int {
	switch {
	case n <= 2:
		return n
	case n <= 4:
		return 4
	case n <= 256:
		return (n + 7) / 8 * 8
	}
	return n
}

// finish ends the step: prompts have advanced, requests have new tokens.
func (e *Engine) finish() {
	if e.dead {
		return
	}
	ended := false
	e.device.flush()
	for _, r := range e.stepped {
		r.tokens += r.chunk
		if r.tokens < r.target {
			continue
		}
		e.token(r)
		if r.generated == r.Output {
			ended = true
			e.end(r)
		}
	}
	if ended {
		kept := e.running[:0]
		for _, r := range e.running {
			if r.generated < r.Output {
				kept = append(kept, r)
			}
		}
		clear(e.running[len(kept):])
		e.running = kept
	}
	e.busy = false
	e.kick()
}

// token gives a request its next token.
func (e *Engine) token(r *Request) {
	r.generated++
	r.target = r.tokens + 1 // the new token is computed by the next step
	now := e.clock.now
	if r.generated == 1 {
		e.node.keep(r.first(r.named))
		r.First()
	} else {
		r.Gap(now - r.lastToken)
		if r.generated%e.options.BlockSize == 0 {
			r.Block()
		}
	}
	r.lastToken = now
}

// end gives the blocks of a request back, but for named blocks of a held one, and keeps them on the node.
func (e *Engine) end(r *Request) {
	e.node.keep(r.first(r.named))
	e.device.give(r.anonymous)
	r.anonymous = 0
	if !r.Held {
		e.device.unpin(r.Numbers[:r.named])
		r.named = 0
	}
	r.Last()
}
