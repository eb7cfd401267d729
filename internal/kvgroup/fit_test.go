package kvgroup_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// blocks says which blocks are there: by group, by the group's own block.
type blocks [][]bool

func (b blocks) has(group int, block uint32) bool {
	return int(block) < len(b[group]) && b[group][block]
}

// reads reports whether the layers of a group read token t when token `next` is computed.
func reads(g kvgroup.Group, t, next uint32) bool {
	switch g.Kind {
	case kvgroup.Full:
		return true
	case kvgroup.Sliding:
		return t+g.Window > next
	case kvgroup.Chunked:
		return t/g.Window == next/g.Window
	}
	return t+1 == next // the state after the last token
}

// serves reports whether group i can serve a prefix: every block with a token that is read is there.
func (b blocks) serves(i int, g kvgroup.Group, tokens uint32) bool {
	if tokens == 0 {
		return true
	}
	for t := range tokens {
		if reads(g, t, tokens) && !b.has(i, t/g.BlockSize) {
			return false
		}
	}
	eagle := g.Eagle && g.Kind != kvgroup.State
	if g.Kind == kvgroup.Sliding && !eagle && !b.has(i, tokens/g.BlockSize-1) {
		return false // vLLM finds no hit without a block, whatever the window
	}
	return !eagle || b.has(i, tokens/g.BlockSize)
}

// longest tries every length.
func (b blocks) longest(gs kvgroup.Groups, limit, align uint32) (tokens uint32) {
	for t := range limit + 1 {
		if align != 0 && t%align != 0 {
			continue
		}
		ok := true
		for i, g := range gs {
			ok = ok && t%g.BlockSize == 0 && b.serves(i, g, t)
		}
		if ok {
			tokens = t
		}
	}
	return tokens
}

// drawGroups draws a model with up to four groups of block sizes that are multiples of page.
func drawGroups(t *rapid.T, page uint32, kinds []kvgroup.Kind, eagle bool) kvgroup.Groups {
	gs := kvgroup.Groups{{Kind: kvgroup.Full}}
	for range rapid.IntRange(0, 3).Draw(t, "more groups") {
		gs = append(gs, kvgroup.Group{Kind: rapid.SampledFrom(kinds).Draw(t, "kind")})
	}
	same := rapid.Bool().Draw(t, "one block size")
	size := page * rapid.SampledFrom([]uint32{1, 2, 3, 4}).Draw(t, "block size")
	for i := range gs {
		g := &gs[i]
		g.BlockSize = size
		if !same {
			g.BlockSize = page * rapid.SampledFrom([]uint32{1, 2, 4}).Draw(t, "block size")
		}
		if g.Kind == kvgroup.Sliding || g.Kind == kvgroup.Chunked {
			g.Window = rapid.Uint32Range(1, 40).Draw(t, "window")
		}
		g.Eagle = eagle && rapid.Bool().Draw(t, "eagle")
	}
	return rapid.Permutation(gs).Draw(t, "order")
}

// drawBlocks draws which blocks are there: most of them, so that prefixes are long.
func drawBlocks(t *rapid.T, gs kvgroup.Groups, tokens uint32) blocks {
	b := make(blocks, len(gs))
	holes := rapid.IntRange(1, 8).Draw(t, "holes in ten")
	for i, g := range gs {
		for range tokens / g.BlockSize {
			b[i] = append(b[i], rapid.IntRange(0, 9).Draw(t, "block") >= holes)
		}
		if g.Kind == kvgroup.Full && rapid.Bool().Draw(t, "dense") {
			for k := range b[i] {
				b[i][k] = true
			}
		}
	}
	return b
}

var kinds = []kvgroup.Kind{kvgroup.Full, kvgroup.Sliding, kvgroup.Chunked, kvgroup.State}

func TestFitIsTheLongestPrefixOfAllLengths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		page := rapid.Uint32Range(1, 3).Draw(t, "page")
		gs := drawGroups(t, page, kinds, true)
		b := drawBlocks(t, gs, 96)
		limit := rapid.Uint32Range(0, 100).Draw(t, "limit")
		align := rapid.SampledFrom([]uint32{0, 1, 5, 8, 12, 200}).Draw(t, "align")
		if err := gs.Validate(page); err != nil {
			t.Fatal(err)
		}
		asked := map[[2]uint32]bool{}
		got := gs.Fit(limit, align, page, func(group int, chainBlock uint32) bool {
			if ask := [2]uint32{uint32(group), chainBlock}; asked[ask] {
				t.Fatalf("group %d was asked for chain block %d twice", group, chainBlock)
			} else {
				asked[ask] = true
			}
			n := gs[group].BlockSize / page
			if (chainBlock+1)%n != 0 {
				t.Fatalf("group %d has no block that ends at chain block %d", group, chainBlock)
			}
			return b.has(group, (chainBlock+1)/n-1)
		})
		if want := b.longest(gs, limit, align); got != want {
			t.Fatalf("%+v: got %d tokens, want %d", gs, got, want)
		}
	})
}

func TestNeedsAreTheBlocksThatAreRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gs := drawGroups(t, 1, kinds, true)
		for i, g := range gs {
			tokens := g.BlockSize * rapid.Uint32Range(0, 40).Draw(t, "blocks")
			first, end := g.Needs(tokens)
			b := make(blocks, len(gs))
			b[i] = slices.Repeat([]bool{true}, int(tokens/g.BlockSize)+2)
			for k := range b[i] {
				b[i][k] = false
				if needed := uint32(k) >= first && uint32(k) < end; b.serves(i, g, tokens) == needed {
					t.Fatalf("%+v, %d tokens: needs %d..%d, but block %d missing matters: %t", g, tokens, first, end, k, !needed)
				}
				b[i][k] = true
			}
		}
	})
}

func TestFitOfExamples(t *testing.T) {
	full := kvgroup.Group{Kind: kvgroup.Full, BlockSize: 4}
	window := kvgroup.Group{Kind: kvgroup.Sliding, Window: 6, BlockSize: 4}
	for name, c := range map[string]struct {
		groups kvgroup.Groups
		blocks blocks
		limit  uint32
		want   uint32
	}{
		"no groups":                     {nil, nil, 100, 0},
		"window at its end":             {kvgroup.Groups{full, window}, blocks{{true, true, true, true}, {false, false, true, true}}, 16, 16},
		"window shorter than its need":  {kvgroup.Groups{full, window}, blocks{{true, true, true, true}, {false, false, false, true}}, 16, 0},
		"window clipped at the start":   {kvgroup.Groups{full, window}, blocks{{true, true, true, true}, {true, false, false, true}}, 16, 4},
		"two windows, one before":       {kvgroup.Groups{full, window}, blocks{{true, true, true, true, true}, {false, true, true, false, true}}, 20, 12},
		"limit below the window's end":  {kvgroup.Groups{full, window}, blocks{{true, true, true, true}, {false, false, true, true}}, 15, 0},
		"full shorter than the window":  {kvgroup.Groups{full, window}, blocks{{true, true, true, false}, {false, true, true, true}}, 16, 12},
		"EAGLE drops what it matched":   {kvgroup.Groups{{Kind: kvgroup.Full, BlockSize: 4, Eagle: true}}, blocks{{true, true, true}}, 12, 8},
		"EAGLE matches above the limit": {kvgroup.Groups{{Kind: kvgroup.Full, BlockSize: 4, Eagle: true}}, blocks{{true, true, true}}, 11, 8},
	} {
		has := func(group int, chainBlock uint32) bool { return c.blocks.has(group, chainBlock) }
		if got := c.groups.Fit(c.limit, 0, 4, has); got != c.want {
			t.Errorf("%s: got %d tokens, want %d", name, got, c.want)
		}
	}
}
