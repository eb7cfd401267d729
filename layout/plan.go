package layout

import (
	"cmp"
	"fmt"
	"slices"
)

// Copy is one contiguous copy: Bytes bytes from one storage to another, the
// offsets counted from the storages' aligned bases.
type Copy struct {
	SrcStorage, DstStorage int
	SrcOffset, DstOffset   uint64
	Bytes                  uint64
}

// BlockPair says that the block Src of the source becomes the block Dst of the
// destination.
type BlockPair struct {
	Src, Dst uint64
}

// Planner turns pairs of blocks into copies between two layouts of equal
// geometry. It is a value, and safe for concurrent use; make one with
// NewPlanner.
type Planner struct {
	src, dst             Strides
	srcBlocks, dstBlocks uint64
	// axes are walked outermost first, in the order of the destination's memory.
	// The copies that are next to each other there then come one after the
	// other.
	axes [3]planAxis
	// unit is the size of the pieces that are walked over: a region, or as many
	// as lie together on both sides.
	unit uint64
}

type planAxis struct {
	name axisName
	n    uint64 // extent; of the block axis it is the number of pairs
}

type axisName uint8

const (
	blockAxis axisName = iota
	layerAxis
	outerAxis
)

// NewPlanner prepares copies from src to dst. Both must have blocks of the same
// num_layers, outer_dim, page_size, inner_dim and dtype_width_bytes; number of
// blocks, alignment and strides may differ.
func NewPlanner(src, dst Layout) (Planner, error) {
	a, b := src.Config(), dst.Config()
	if err := checkSameGeometry(a, b); err != nil {
		return Planner{}, fmt.Errorf("plan copies: %w", err)
	}
	p := Planner{
		src: src.Strides(), dst: dst.Strides(), srcBlocks: a.NumBlocks, dstBlocks: b.NumBlocks,
		axes: [3]planAxis{{blockAxis, 0}, {layerAxis, a.NumLayers}, {outerAxis, a.OuterDim}},
		unit: a.regionBytes(),
	}
	slices.SortStableFunc(p.axes[:], func(x, y planAxis) int {
		return cmp.Compare(p.dst.along(y.name), p.dst.along(x.name))
	})
	p.joinRegions()
	return p, nil
}

// along is the distance between neighbours along an axis. That between two
// storages is beyond all others.
func (s Strides) along(a axisName) uint64 {
	switch {
	case a == blockAxis:
		return s.Block
	case a == outerAxis:
		return s.Outer
	case s.LayerStorage:
		return MaxBytes
	}
	return s.Layer
}

// joinRegions takes the innermost axes into the unit while their pieces follow
// one another on both sides, so that a whole block between two contiguous
// layouts is one step and not one per region.
func (p *Planner) joinRegions() {
	for i := len(p.axes) - 1; i >= 0; i-- {
		a := &p.axes[i]
		if a.n == 1 {
			continue
		}
		if a.name == blockAxis || p.src.along(a.name) != p.unit || p.dst.along(a.name) != p.unit {
			return
		}
		p.unit *= a.n
		a.n = 1
	}
}

// Append appends to plan the copies that move pairs, and returns the extended
// plan. It allocates only when plan has no room. Copies that are neighbours on
// both sides are one copy, across outer indices, layers and blocks; they are
// fewest when the pairs ascend on both sides. The order is always the same for
// the same pairs: that of the destination's memory, and along the blocks that
// of the pairs.
//
// A block that is the destination of two pairs ends up with the bytes of the
// later one. Between two layouts over the same storage no block may be both
// source and destination.
//
// The error names the pair and the block that is out of range; plan is then
// returned as it was.
func (p *Planner) Append(plan []Copy, pairs []BlockPair) ([]Copy, error) {
	for i, b := range pairs {
		if b.Src >= p.srcBlocks {
			return plan, fmt.Errorf("plan copies: pair %d: source block %d: want 0 to %d", i, b.Src, p.srcBlocks-1)
		}
		if b.Dst >= p.dstBlocks {
			return plan, fmt.Errorf("plan copies: pair %d: destination block %d: want 0 to %d", i, b.Dst, p.dstBlocks-1)
		}
	}
	axes := p.axes
	for i := range axes {
		if axes[i].name == blockAxis {
			axes[i].n = uint64(len(pairs))
		}
	}
	first := len(plan)
	var at [3]uint64 // indexed by axisName
	for at[axes[0].name] = range axes[0].n {
		for at[axes[1].name] = range axes[1].n {
			for at[axes[2].name] = range axes[2].n {
				b := pairs[at[blockAxis]]
				src := p.src.place(b.Src, at[layerAxis], at[outerAxis], p.unit)
				dst := p.dst.place(b.Dst, at[layerAxis], at[outerAxis], p.unit)
				if len(plan) > first && plan[len(plan)-1].extend(src, dst) {
					continue
				}
				plan = append(plan, Copy{
					SrcStorage: src.Storage, SrcOffset: src.Offset,
					DstStorage: dst.Storage, DstOffset: dst.Offset, Bytes: p.unit,
				})
			}
		}
	}
	return plan, nil
}

// extend adds src to dst to the copy if they directly follow what it copies.
func (c *Copy) extend(src, dst Place) bool {
	if c.SrcStorage != src.Storage || c.SrcOffset+c.Bytes != src.Offset ||
		c.DstStorage != dst.Storage || c.DstOffset+c.Bytes != dst.Offset {
		return false
	}
	c.Bytes += src.Size
	return true
}
