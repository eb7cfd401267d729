package ttft

import (
	"container/list"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// block is one block of a prompt.
type block struct {
	hash, parent kv.SequenceHash
	local        kv.LocalHash
	first        bool
}

// chain returns the blocks of a prompt.
func chain(locals []kv.LocalHash) []block {
	blocks := make([]block, len(locals))
	for i, h := range kv.AppendSequence(nil, locals) {
		blocks[i] = block{hash: h, local: locals[i], first: i == 0}
		if i > 0 {
			blocks[i].parent = blocks[i-1].hash
		}
	}
	return blocks
}

// cache is one tier of an owner: so many blocks, of which those that were not used for
// longest leave first. What it says of changes goes to publish.
type cache struct {
	owner    kv.Owner
	tier     kv.Tier
	capacity int
	publish  func(*kvevent.RouterEvent)

	at    map[kv.SequenceHash]*list.Element
	order list.List // of SequenceHash, the last used first
	made  uint64
}

func newCache(o kv.Owner, t kv.Tier, capacity int, publish func(*kvevent.RouterEvent)) *cache {
	return &cache{owner: o, tier: t, capacity: capacity, publish: publish, at: make(map[kv.SequenceHash]*list.Element)}
}

// prefix returns how many of blocks, from the first on, are there.
func (c *cache) prefix(blocks []block) int {
	for i := range blocks {
		if c.at[blocks[i].hash] == nil {
			return i
		}
	}
	return len(blocks)
}

// put stores blocks or marks them as used. Of one prompt the last blocks leave first.
func (c *cache) put(blocks []block) {
	var run kvevent.RouterEvent
	flush := func() {
		if len(run.Blocks) > 0 {
			c.say(&run)
		}
		run = kvevent.RouterEvent{}
	}
	for i := range blocks {
		b := &blocks[i]
		if c.at[b.hash] != nil {
			flush()
			continue
		}
		if len(run.Blocks) == 0 {
			run = kvevent.RouterEvent{Kind: kvevent.Stored, Parent: b.parent, HasParent: !b.first}
		}
		run.Blocks = append(run.Blocks, kvevent.StoredBlock{Hash: b.hash, Local: b.local})
		c.at[b.hash] = c.order.PushFront(b.hash)
	}
	flush()
	c.use(blocks)
	c.evict()
}

// use marks blocks as used now.
func (c *cache) use(blocks []block) {
	for i := len(blocks) - 1; i >= 0; i-- {
		if e := c.at[blocks[i].hash]; e != nil {
			c.order.MoveToFront(e)
		}
	}
}

func (c *cache) evict() {
	var gone []kv.SequenceHash
	for len(c.at) > c.capacity {
		h := c.order.Remove(c.order.Back()).(kv.SequenceHash)
		delete(c.at, h)
		gone = append(gone, h)
	}
	if len(gone) > 0 {
		c.say(&kvevent.RouterEvent{Kind: kvevent.Removed, Removed: gone})
	}
}

func (c *cache) say(e *kvevent.RouterEvent) {
	c.made++
	e.Owner, e.Tier, e.ID = c.owner, c.tier, c.made
	c.publish(e)
}
