package kvgroup_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// coordinator is vLLM 0.32's HybridKVCacheCoordinator.find_longest_cache_hit, line by line, for
// groups without EAGLE. Its names are vLLM's.
type coordinator struct {
	groups    kvgroup.Groups
	blocks    blocks
	alignment uint32
}

func (c *coordinator) findLongestCacheHit(maxCacheHitLength uint32) uint32 {
	var order []int
	for i, g := range c.groups {
		if g.Kind == kvgroup.Full {
			order = append(order, i)
		}
	}
	for i, g := range c.groups {
		if g.Kind != kvgroup.Full {
			order = append(order, i)
		}
	}
	isSimpleHybrid := len(order) == 2 && c.groups[order[1]].Kind != kvgroup.Full
	fullHits := map[int]uint32{}
	hitLength := maxCacheHitLength
	for {
		curr := hitLength
		for _, i := range order {
			if hit, ok := fullHits[i]; ok {
				curr = min(curr, hit)
				continue
			}
			curr = c.find(i, curr)
			if c.groups[i].Kind == kvgroup.Full {
				fullHits[i] = curr
			}
		}
		if curr >= hitLength {
			return hitLength
		}
		if hitLength = curr; isSimpleHybrid {
			return hitLength
		}
	}
}

// find is find_longest_cache_hit of the manager of the group's kind.
func (c *coordinator) find(i int, maxLength uint32) uint32 {
	switch c.groups[i].Kind {
	case kvgroup.Full:
		return c.findFull(i, maxLength)
	case kvgroup.Sliding:
		return c.findSliding(i, maxLength)
	case kvgroup.Chunked:
		return c.findChunked(i, maxLength)
	}
	return c.findState(i, maxLength)
}

func (c *coordinator) findFull(i int, maxLength uint32) uint32 {
	size := c.groups[i].BlockSize
	computed := uint32(0)
	for computed < maxLength/size && c.blocks.has(i, computed) {
		computed++
	}
	for size != c.alignment && computed*size%c.alignment != 0 {
		computed--
	}
	return computed * size
}

func (c *coordinator) findSliding(i int, maxLength uint32) uint32 {
	size := c.groups[i].BlockSize
	contiguous := int((c.groups[i].Window - 1 + size - 1) / size)
	num := 0
	for b := int(maxLength/size) - 1; b >= 0; b-- {
		if !c.blocks.has(i, uint32(b)) {
			num = 0
			continue
		}
		if num == 0 && size != c.alignment && uint32(b+1)*size%c.alignment != 0 {
			continue
		}
		if num++; num >= contiguous {
			return uint32(b+num) * size
		}
	}
	for size != c.alignment && uint32(num)*size%c.alignment != 0 {
		num--
	}
	return uint32(num) * size
}

func (c *coordinator) findChunked(i int, maxLength uint32) uint32 {
	g := c.groups[i]
	computed := maxLength / g.Window * g.Window / g.BlockSize
	for computed < maxLength/g.BlockSize && c.blocks.has(i, computed) {
		computed++
	}
	return computed * g.BlockSize
}

func (c *coordinator) findState(i int, maxLength uint32) uint32 {
	size := c.groups[i].BlockSize
	for b := int(maxLength/size) - 1; b >= 0; b-- {
		if c.blocks.has(i, uint32(b)) && uint32(b+1)*size%c.alignment == 0 {
			return uint32(b+1) * size
		}
	}
	return 0
}

func TestFitIsWhatVLLMsCoordinatorFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const page = 2
		gs := drawGroups(t, page, kinds, false)
		if slices.ContainsFunc(gs, func(g kvgroup.Group) bool { return g.Kind == kvgroup.Chunked }) {
			// vLLM has chunks of whole blocks and one block size beside them.
			for i := range gs {
				gs[i].BlockSize = gs[0].BlockSize
				if gs[i].Kind == kvgroup.Chunked {
					gs[i].Window = gs[0].BlockSize * rapid.Uint32Range(1, 6).Draw(t, "chunk")
				}
			}
		}
		b := drawBlocks(t, gs, 96)
		limit := rapid.Uint32Range(0, 100).Draw(t, "limit")
		c := &coordinator{gs, b, gs.Align()}
		got := gs.Fit(limit, 0, page, func(group int, chainBlock uint32) bool {
			return b.has(group, (chainBlock+1)/(gs[group].BlockSize/page)-1)
		})
		// vLLM hands its limit on unaligned, and every group's answer is aligned.
		if want := c.findLongestCacheHit(limit); got != want {
			t.Fatalf("%+v, blocks %v, limit %d: got %d tokens, vLLM %d", gs, b, limit, got, want)
		}
	})
}
