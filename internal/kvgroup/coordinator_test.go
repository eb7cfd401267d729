package kvgroup_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// coordinator is vLLM 0.32's HybridKVCacheCoordinator.find_longest_cache_hit, line by line. Its names
// are vLLM's.
type coordinator struct {
	groups    kvgroup.Groups
	blocks    blocks
	alignment uint32
	// known is the number of tokens that have a hash.
	known uint32
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
	eagleVerified := map[int]bool{}
	for {
		curr := hitLength
		for _, i := range order {
			if hit, ok := fullHits[i]; ok {
				curr = min(curr, hit)
				continue
			}
			drop, maxLength := c.groups[i].Eagle && !eagleVerified[i], curr
			if drop && c.groups[i].Kind != kvgroup.State {
				maxLength = min(curr+c.groups[i].BlockSize, c.known)
			}
			hit := c.find(i, maxLength, drop)
			if drop {
				eagleVerified[i] = true
			} else if hit < curr {
				clear(eagleVerified)
			}
			curr = hit
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
func (c *coordinator) find(i int, maxLength uint32, drop bool) uint32 {
	switch c.groups[i].Kind {
	case kvgroup.Full:
		return c.findFull(i, maxLength, drop)
	case kvgroup.Sliding:
		return c.findSliding(i, maxLength, drop)
	case kvgroup.Chunked:
		return c.findChunked(i, maxLength)
	}
	return c.findState(i, maxLength)
}

func (c *coordinator) findFull(i int, maxLength uint32, drop bool) uint32 {
	size := c.groups[i].BlockSize
	computed := uint32(0)
	for computed < maxLength/size && c.blocks.has(i, computed) {
		computed++
	}
	if drop && computed > 0 {
		computed--
	}
	for size != c.alignment && computed*size%c.alignment != 0 {
		computed--
	}
	return computed * size
}

func (c *coordinator) findSliding(i int, maxLength uint32, drop bool) uint32 {
	size := c.groups[i].BlockSize
	contiguous, dropped := int((c.groups[i].Window-1+size-1)/size), 0
	if drop {
		contiguous, dropped = contiguous+1, 1
	}
	num, computed := 0, -1
	for b := int(maxLength/size) - 1; b >= 0; b-- {
		if !c.blocks.has(i, uint32(b)) {
			num = 0
			continue
		}
		if num == 0 && size != c.alignment && uint32(b+1-dropped)*size%c.alignment != 0 {
			continue
		}
		if num++; num >= contiguous {
			computed = b + num
			break
		}
	}
	if computed < 0 {
		computed = c.aligned(num, size)
	}
	if drop && computed > 0 {
		computed = c.aligned(computed-1, size)
	}
	return uint32(computed) * size
}

// aligned drops blocks until they end at the alignment.
func (c *coordinator) aligned(blocks int, size uint32) int {
	for size != c.alignment && uint32(blocks)*size%c.alignment != 0 {
		blocks--
	}
	return blocks
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
		if d := drawFit(t, kinds, false); d.got != d.want {
			t.Fatalf("got %d tokens, vLLM %d", d.got, d.want)
		}
	})
}

// Two exceptions, both without a wrong block. vLLM looks for the block above a prefix once in each EAGLE
// group: when another group shortens the prefix later, vLLM may find a prefix without that block, and
// Fit finds a shorter one. And vLLM loses a prefix inside of a window whose blocks are smaller than the
// alignment: it aligns the blocks before it drops one, and then again.
func TestFitWithDraftsIsWhatVLLMsCoordinatorProves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// vLLM serves no chunks beside EAGLE.
		d := drawFit(t, []kvgroup.Kind{kvgroup.Full, kvgroup.Sliding, kvgroup.State}, true)
		if d.got < d.want && d.serves(d.want) || d.got > d.want && !d.insideOfWindow() || !d.serves(d.got) {
			t.Fatalf("got %d tokens, vLLM %d", d.got, d.want)
		}
	})
}

// drawn has groups and blocks, and what Fit and vLLM find.
type drawn struct {
	groups    kvgroup.Groups
	blocks    blocks
	got, want uint32
}

// serves reports whether all groups can serve a prefix, with the blocks above it.
func (d *drawn) serves(tokens uint32) bool {
	for i, g := range d.groups {
		if !d.blocks.serves(i, g, tokens) {
			return false
		}
	}
	return true
}

// insideOfWindow reports whether the prefix that Fit finds is shorter than the window of an EAGLE
// group with blocks that are smaller than the alignment.
func (d *drawn) insideOfWindow() bool {
	return slices.ContainsFunc(d.groups, func(g kvgroup.Group) bool {
		return g.Eagle && g.Kind == kvgroup.Sliding && g.BlockSize != d.groups.Align() && g.Window > d.got
	})
}

// drawFit draws groups and blocks, and asks both.
func drawFit(t *rapid.T, kinds []kvgroup.Kind, eagle bool) *drawn {
	const page, known = 2, 96
	gs := drawGroups(t, page, kinds, eagle)
	if slices.ContainsFunc(gs, func(g kvgroup.Group) bool { return g.Kind == kvgroup.Chunked }) {
		// vLLM has chunks of whole blocks and one block size beside them.
		for i := range gs {
			gs[i].BlockSize = gs[0].BlockSize
			if gs[i].Kind == kvgroup.Chunked {
				gs[i].Window = gs[0].BlockSize * rapid.Uint32Range(1, 6).Draw(t, "chunk")
			}
		}
	}
	for i := range gs {
		if gs[i].Eagle && gs[i].Kind == kvgroup.Sliding {
			gs[i].Window = max(gs[i].Window, 2) // of a window of one token vLLM wants a block, or none
		}
	}
	b := drawBlocks(t, gs, known)
	limit := rapid.Uint32Range(0, 100).Draw(t, "limit")
	t.Logf("%+v, blocks %v, limit %d", gs, b, limit)
	got := gs.Fit(limit, 0, page, func(group int, chainBlock uint32) bool {
		return b.has(group, (chainBlock+1)/(gs[group].BlockSize/page)-1)
	})
	// vLLM hands its limit on unaligned, and every group's answer is aligned.
	want := (&coordinator{gs, b, gs.Align(), known}).findLongestCacheHit(limit)
	return &drawn{gs, b, got, want}
}
