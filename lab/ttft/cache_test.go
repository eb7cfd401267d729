package ttft

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/index/loggen"
	"github.com/blockyard-ai/blockyard/router/index"
)

// cache is one tier of an owner. It tells the index of each change.
type cache struct {
	*loggen.Engine
	owner kv.Owner
	tier  kv.Tier
	index *index.Index
	made  uint64
}

func newCache(x *index.Index, o kv.Owner, t kv.Tier, blocks int) *cache {
	return &cache{Engine: loggen.NewEngine(loggen.Options{Pool: blocks, Chunk: 1 << 16}, 0), owner: o, tier: t, index: x}
}

// use stores the first n blocks of a prompt, or marks them as used.
func (c *cache) use(p *prompt, n int) {
	if err := c.Serve(p.locals[:n], p.sequence[:n], c); err != nil {
		panic(err)
	}
}

// Stored implements loggen.Sink.
func (c *cache) Stored(parent kv.SequenceHash, blocks []kvevent.StoredBlock) error {
	return c.apply(&kvevent.RouterEvent{Kind: kvevent.Stored, Parent: parent, HasParent: parent != 0, Blocks: blocks})
}

// Removed implements loggen.Sink.
func (c *cache) Removed(hashes []kv.SequenceHash) error {
	return c.apply(&kvevent.RouterEvent{Kind: kvevent.Removed, Removed: hashes})
}

func (c *cache) apply(e *kvevent.RouterEvent) error {
	c.made++
	e.Owner, e.Tier, e.ID = c.owner, c.tier, c.made
	return c.index.Apply(e)
}
