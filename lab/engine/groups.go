package engine

import (
	"context"
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// modelGroups returns the KV groups of a namespace: one of full attention if it has none.
func modelGroups(ns *kv.Namespace) kvgroup.Groups {
	if gs := ns.KVGroups(); gs != nil {
		return gs
	}
	return kvgroup.Groups{{Kind: kvgroup.Full, BlockSize: ns.BlockSize}}
}

// window is the number of the group of a hybrid model's sliding window.
const window int32 = 0

// full returns the number of the group of full attention.
func (p *pool) full() int32 { return int32(p.groups.Primary()) }

// hybrid reports whether the model has a sliding window.
func (p *pool) hybrid() bool { return len(p.groups) > 1 }

// windowStart returns the first block of the window before the end of blocks leading blocks, 0
// without a window.
func (p *pool) windowStart(blocks int) int {
	if !p.hybrid() {
		return 0
	}
	first, _ := p.groups[window].Needs(uint32(blocks * p.blockSize))
	return int(first)
}

// matchWindow appends to dst the device blocks of the window before the end of ids, which match has
// found, and none for each block before the window.
func (p *pool) matchWindow(dst []int32, ids []identity) []int32 {
	if !p.hybrid() {
		return dst
	}
	start := p.windowStart(len(ids))
	for i, id := range ids {
		b := none
		if i >= start {
			b = p.cached[cacheKey{id.engine, window}]
		}
		dst = append(dst, b)
	}
	return dst
}

// take gives r n more device blocks in each group. The window needs none of the first outside of
// them. The caller has asked the pool.
func (c *core) take(r *request, n, outside int) {
	r.blocks = c.pool.take(r.blocks, n)
	if c.pool.hybrid() {
		for range outside {
			r.window = append(r.window, none)
		}
		r.window = c.pool.take(r.window, n-outside)
	}
}

// truncateWindow takes the device blocks of a failed load from r, a request of a hybrid model. The load
// left out blocks that the window needs now.
func (c *core) truncateWindow(r *request) {
	if c.pool.hybrid() {
		c.pool.release(r.blocks[r.cached:])
		c.pool.release(r.window[r.cached:])
		r.blocks, r.window = r.blocks[:r.cached], r.window[:r.cached]
	}
}

// cacheBlocks makes r's blocks up to end findable, in every group. The window comes first, as its
// group does.
func (c *core) cacheBlocks(r *request, end int) {
	first := r.cached
	if c.pool.hybrid() {
		c.pool.store(window, r.window[first:end], r.seq.ids[first:end], r.parentOf(first), r.blockTokens(first, end))
	}
	c.pool.store(c.pool.full(), r.blocks[first:end], r.seq.ids[first:end], r.parentOf(first), r.blockTokens(first, end))
	r.cached = end
}

// slide releases the device blocks that r's window has left. Their content stays findable until the
// blocks are taken.
func (c *core) slide(r *request) {
	if !c.pool.hybrid() {
		return
	}
	left := (r.computed + 1 - int(c.pool.groups[window].Window)) / c.pool.blockSize // the next token sees the rest
	for i := 0; i < min(left, len(r.window)); i++ {
		if r.window[i] != none {
			c.pool.release(r.window[i : i+1])
			r.window[i] = none
		}
	}
}

// offerWindows has the agent store the window before the end of r's prompt, for requests that go on
// from there, and the window before the end of r, for the next turn of a conversation. before are
// the tokens that r had computed before the step. The prefix was offered before: a full agent
// refuses a window without one.
func (c *core) offerWindows(r *request, before int) {
	if r.talk == nil || !c.pool.hybrid() {
		return
	}
	size := c.pool.blockSize
	if before < r.prompt && r.computed >= r.prompt {
		// The same prompt can use a block less, because its last token is computed again.
		c.offerWindow(r, c.pool.windowStart((r.prompt-1)/size), r.prompt/size)
	}
	if r.left() == 0 && r.last() {
		c.offerWindow(r, c.pool.windowStart(r.cached), r.cached)
	}
}

// offerWindow offers blocks start … end-1 of r's window, without those that have left it.
func (c *core) offerWindow(r *request, start, end int) {
	for start < end && r.window[start] == none {
		start++
	}
	if start < end {
		c.offerPart(r, part{window, start, r.window[start:end]})
	}
}

// fitted is the agent's answer to fit.
type fitted struct {
	blocks int
	err    error
}

// askStored asks the agent how many of the leading blocks of r it can serve, in a conversation that
// ends with the answer. answer has room for it. Without an agent the answer is 0.
func (c *core) askStored(r *request, answer chan<- fitted) {
	c.numbers++
	r.number = c.numbers
	c.converse(r)
	if r.talk == nil {
		answer <- fitted{}
		return
	}
	r.talk.fit(len(r.hittable()), func(blocks int, err error) { answer <- fitted{blocks, err} })
	r.talk.close()
}

// maxFits bounds the FITs of one lookup. A block may leave the agent between FIT and LOOKUP.
const maxFits = 3

// fit implements conversation: it queues the question how many of the leading blocks, at most limit,
// the agent can serve in every KV group.
func (t *talk) fit(limit int, done func(blocks int, err error)) {
	t.do(func() { done(t.askFit(limit)) })
}

func (t *talk) askFit(limit int) (blocks int, err error) {
	if t.err != nil {
		return 0, t.err
	}
	ctx, cancel := context.WithTimeout(t.link.ctx, answerTime)
	defer cancel()
	page := int(t.link.groups[t.link.groups.Primary()].BlockSize)
	t.link.ctr.add(&t.link.ctr.Fits, 1)
	tokens, err := t.link.sched.Fit(ctx, t.id, limit*page, 0)
	if err == nil && (tokens%page != 0 || tokens > limit*page) {
		err = fmt.Errorf("fit answer: %d tokens, want a multiple of %d, at most %d", tokens, page, limit*page)
	}
	return tokens / page, err
}

// askAll asks for the longest prefix that all KV groups serve, of count blocks from first on. It pins
// its blocks in each group, and returns the tiers of those of full attention: none unless all
// are pinned.
func (t *talk) askAll(first, count int) ([]kv.Tier, error) {
	for range maxFits {
		end, err := t.askFit(first + count)
		if err != nil || end <= first {
			return nil, err
		}
		sources, err := t.pinAll(first, end)
		if err != nil || sources != nil {
			return sources, err
		}
		t.unpin(first, end-first)
	}
	return nil, nil
}

// pinAll pins the blocks of each group that the prefix of end blocks needs from first on. Without one of
// them it returns no sources.
func (t *talk) pinAll(first, end int) (sources []kv.Tier, err error) {
	for group, g := range t.link.groups {
		from, _ := g.Needs(uint32(end) * g.BlockSize)
		start := max(int(from), first)
		found, err := t.pin(int32(group), start, end-start)
		if err != nil || len(found) < end-start {
			return nil, err
		}
		if group == t.link.groups.Primary() {
			sources = found
		}
	}
	return sources, nil
}
