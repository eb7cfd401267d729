package kvgroup

import (
	"fmt"
	"math"
	"slices"
)

// Groups are the KV groups of a model. A group's number is its index.
type Groups []Group

// Validate returns an error for the first field out of range. page is the tokens of a chain
// block. No groups at all are valid: the model is not a hybrid one.
func (gs Groups) Validate(page uint32) error {
	if len(gs) > MaxGroups {
		return fmt.Errorf("groups: %d, limit %d", len(gs), MaxGroups)
	}
	for i, g := range gs {
		if err := g.Validate(page); err != nil {
			return fmt.Errorf("groups[%d] %w", i, err)
		}
	}
	if len(gs) > 0 && gs.Primary() < 0 {
		return fmt.Errorf("groups: none of kind %q", Full)
	}
	if a := gs.multiple(1); a > MaxBlockSize {
		return fmt.Errorf("groups: the least common multiple of the block sizes exceeds %d", MaxBlockSize)
	}
	return nil
}

// Primary returns the number of the first group of full attention, or -1 if there is none.
func (gs Groups) Primary() int {
	return slices.IndexFunc(gs, func(g Group) bool { return g.Kind == Full })
}

// Align returns the least common multiple of the block sizes. Every prefix that Fit answers is a
// multiple of it.
func (gs Groups) Align() uint32 { return uint32(min(gs.multiple(1), math.MaxUint32)) }

// multiple returns the least common multiple of n and the block sizes, or a number above
// math.MaxUint32 if it has more than 32 bits.
func (gs Groups) multiple(n uint64) uint64 {
	for _, g := range gs {
		a, b := n, uint64(g.BlockSize)
		for b != 0 {
			a, b = b, a%b
		}
		if n = n / a * uint64(g.BlockSize); n > math.MaxUint32 {
			return math.MaxUint32 + 1
		}
	}
	return n
}

// Longest returns the longest prefix that `known` tokens of a prompt can have: a multiple of Align, with
// the blocks above it that EAGLE groups need.
func (gs Groups) Longest(known uint32) uint32 {
	above := uint32(0)
	for _, g := range gs {
		if g.Eagle && g.Kind != State {
			above = max(above, g.BlockSize)
		}
	}
	tokens := known - min(above, known)
	return tokens - tokens%gs.Align()
}

// Fit returns the length in tokens of the longest prefix that every group can serve: at most
// limit, a multiple of align and of Align, with every block that Needs names. align 0 stands for
// no other multiple than Align. 0 means no prefix.
//
// page is the tokens of a chain block. has reports whether the group's block that ends with the
// chain block at position chainBlock is there. Blocks above limit are asked for if a group is an
// EAGLE group. The groups must be valid.
func (gs Groups) Fit(limit, align, page uint32, has func(group int, chainBlock uint32) bool) uint32 {
	multiple := gs.multiple(uint64(max(align, 1)))
	if len(gs) == 0 || multiple > uint64(limit) {
		return 0
	}
	f := fit{groups: gs, page: page, has: has, known: make([]interval, len(gs))}
	tokens := limit - limit%uint32(multiple)
	// Full attention is monotone: one pass from the start finds its bound.
	for i, g := range gs {
		if g.Kind == Full {
			tokens = min(tokens, f.prefix(i, tokens))
			tokens -= tokens % uint32(multiple)
		}
	}
	// A window may be whole at one length and not at a shorter one. Every group either accepts
	// the length or lowers it, until all accept the same.
	for accepted := 0; accepted < len(gs) && tokens > 0; {
		for i, g := range gs {
			bound := tokens
			if g.Kind != Full {
				bound = f.lower(i, tokens)
			}
			if bound == tokens {
				accepted++
				continue
			}
			accepted = 0
			if tokens = bound - bound%uint32(multiple); tokens == 0 {
				break
			}
		}
	}
	return tokens
}

// fit is one call of Fit.
type fit struct {
	groups Groups
	page   uint32
	has    func(group int, chainBlock uint32) bool
	// known holds for each sparse group the blocks that it is known to have.
	known []interval
}

// interval is the blocks from first up to but without end.
type interval struct{ first, end uint32 }

// block asks for block b of group i.
func (f *fit) block(i int, b uint32) bool {
	return f.has(i, f.groups[i].ChainBlock(b, f.page))
}

// prefix returns the tokens up to which a group of full attention has all blocks, at most tokens.
// tokens must be a multiple of the group's block size.
func (f *fit) prefix(i int, tokens uint32) uint32 {
	g := f.groups[i]
	_, end := g.Needs(tokens)
	b := uint32(0)
	for b < end && f.block(i, b) {
		b++
	}
	if g.Eagle && b > 0 {
		b--
	}
	return b * g.BlockSize
}

// lower returns tokens if a sparse group can serve them. Otherwise it returns a bound below them,
// above which the group can serve nothing.
func (f *fit) lower(i int, tokens uint32) uint32 {
	g, known := f.groups[i], &f.known[i]
	first, end := g.Needs(tokens)
	// Both ends only move down, so blocks above the known ones were asked for already.
	from := end
	if known.first < known.end {
		from = min(end, known.first)
	}
	for b := from; b > first; b-- {
		if f.block(i, b-1) {
			continue
		}
		// The prefix must need no block from the missing one on.
		missing := b - 1
		if g.Eagle && g.Kind != State {
			missing -= min(1, missing)
		}
		*known = interval{}
		return missing * g.BlockSize
	}
	*known = interval{first, end}
	return tokens
}
