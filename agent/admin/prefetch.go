package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// prefetchRequest is the body of POST /v1/prefetch.
type prefetchRequest struct {
	selection
	Timeout float64 `json:"timeout_seconds"`
}

// prefetchAnswer counts the selected blocks that are resident: Host had been in host memory before,
// Read have come from disk, and Left are on disk alone.
type prefetchAnswer struct {
	Host   int  `json:"host"`
	Read   int  `json:"read"`
	Left   int  `json:"left"`
	DryRun bool `json:"dry_run,omitempty"`
}

// prefetchPoll is the pause between two looks at which reads have ended.
const prefetchPoll = 20 * time.Millisecond

// prefetch reads the blocks of a selection from disk into host memory and waits for them. It reads as
// routers' hints do: a quarter of the host tier at a time, and evicts the coldest blocks. Of a prompt it
// takes the blocks before the first one that is in no tier. A dry run reads nothing.
func (c *control) prefetch(ctx context.Context, in prefetchRequest) (prefetchAnswer, error) {
	p, err := c.check(&in.selection)
	if err == nil {
		err = checkTimeout(in.Timeout)
	}
	if err != nil {
		return prefetchAnswer{}, err
	}
	blocks, err := in.readable(p)
	if err != nil {
		return prefetchAnswer{}, err
	}
	out := prefetchAnswer{DryRun: in.DryRun}
	var coming []blockmgr.Block
	for i := range blocks {
		if blocks[i].Tiers.Has(kv.TierHost) {
			out.Host++
		} else {
			coming = append(coming, blocks[i].Block)
		}
	}
	if most := p.MostBlocks(kv.TierHost); len(blocks) > most {
		return prefetchAnswer{}, &controlError{http.StatusConflict,
			fmt.Errorf("%d blocks are selected, and the host tier has room for %d: they would evict one another", len(blocks), most)}
	}
	out.Left = len(coming)
	if in.DryRun {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(in.Timeout*float64(time.Second)))
	defer cancel()
	out.Left = readAll(ctx, p, coming)
	out.Read = len(coming) - out.Left
	return out, nil
}

// readAll has blocks read into host memory until all have come, none comes any more, or ctx ends. It
// returns how many are not in host memory.
func readAll(ctx context.Context, p *blockmgr.Pool, coming []blockmgr.Block) (left int) {
	tick := time.NewTicker(prefetchPoll)
	defer tick.Stop()
	for {
		waiting := coming
		started := 0
		// One by one: a block that is gone ends no prefix. Without a start the pool reads as much as it may.
		for len(waiting) > 0 && p.Prefetch(waiting[:1]) > 0 {
			waiting = waiting[1:]
			started++
		}
		if started == 0 && p.Prefetching() == 0 {
			return len(p.NotInHost(coming))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return len(p.NotInHost(coming))
		}
		if coming = p.NotInHost(coming); len(coming) == 0 {
			return 0
		}
	}
}

// readable returns the selected blocks that are in a tier, parents first. Of a prompt of a model without
// KV groups it returns those before the first block that is in no tier.
func (s *selection) readable(p *blockmgr.Pool) ([]blockmgr.BlockInfo, error) {
	found, ofPrompt, err := s.resident(p, kv.TierMask(0).With(kv.TierHost).With(kv.TierDisk))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b blockmgr.BlockInfo) int {
		if s.Tokens != nil {
			return cmp.Compare(ofPrompt[a.Block.Key], ofPrompt[b.Block.Key])
		}
		return cmp.Compare(a.Block.Position, b.Block.Position)
	})
	ns := p.Namespace()
	if s.Tokens != nil && ns.KVGroups() == nil {
		for i := range found {
			if ofPrompt[found[i].Block.Key] != i {
				return found[:i], nil // the prompt has a gap
			}
		}
	}
	return found, nil
}
