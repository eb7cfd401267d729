package layout

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Tensor is the shape of a KV tensor as an engine registers it.
type Tensor struct {
	// Shape is the extent of each axis.
	Shape []uint64
	// Strides is the distance between neighbours along each axis, in elements.
	// Nil means that the tensor is dense and its last axis innermost.
	Strides []uint64
}

// Known is what an engine says of its cache besides the tensors.
type Known struct {
	// NumBlocks is the number of blocks that the engine manages, at least 1. The
	// tensors may hold more.
	NumBlocks uint64
	// PageSize is the number of tokens in a block.
	PageSize uint64
	// DTypeBytes is the size of one element.
	DTypeBytes uint64
	// NumLayers is the number of layers. Zero means that the tensors tell.
	NumLayers uint64
	// OuterDim and InnerDim are set together, for caches whose shape does not
	// tell: 1 and the head size for MLA. Zero means that the tensors tell.
	OuterDim, InnerDim uint64
}

func (k Known) validate() error {
	if k.NumBlocks < 1 || k.NumBlocks > math.MaxUint32 {
		return fmt.Errorf("layout num_blocks %d: want 1 to %d", k.NumBlocks, uint64(math.MaxUint32))
	}
	if (k.OuterDim == 0) != (k.InnerDim == 0) {
		return fmt.Errorf("layout outer_dim %d, inner_dim %d: want both or neither", k.OuterDim, k.InnerDim)
	}
	// The other fields are part of the Config that is detected; a zero page
	// size is looked at before that, as a divisor.
	if k.PageSize == 0 {
		return fmt.Errorf("layout page_size 0: want 1 to 4096")
	}
	return nil
}

// InferNumBlocks is how many blocks a layer's tensor of this shape holds, for
// engines that do not say how many they manage: the first axis of an MLA cache,
// otherwise the longer of the first two. It is KVBM's rule, and wrong for a cache
// of fewer blocks than its other axis is long; what the engine says is better.
func InferNumBlocks(shape []uint64, mla bool) (uint64, error) {
	if len(shape) < 3 {
		return 0, fmt.Errorf("infer num_blocks of tensor %v: rank %d: want at least 3", shape, len(shape))
	}
	if mla {
		return shape[0], nil
	}
	return max(shape[0], shape[1]), nil
}

// DetectFullyContiguous reads the layout of a cache that is one tensor
// [blocks, layers, outer, …], as TensorRT-LLM registers it; if Known says that
// the outer dimension is 1, its axis may be missing. The axes that follow are
// one page and may lie in any order, tokens or heads first. The layout has as
// many blocks as the tensor.
//
// A tensor whose pages are not contiguous, or whose blocks, layers and outer
// indices do not follow one another without a gap, is refused.
func DetectFullyContiguous(t Tensor, k Known) (FullyContiguous, error) {
	l, err := detectFullyContiguous(t, k)
	if err != nil {
		return FullyContiguous{}, fmt.Errorf("detect layout of tensor %v: %w", t.Shape, err)
	}
	return l, nil
}

func detectFullyContiguous(t Tensor, k Known) (FullyContiguous, error) {
	if err := k.validate(); err != nil {
		return FullyContiguous{}, err
	}
	minRank := 4
	if k.OuterDim == 1 {
		minRank = 3
	}
	strides, err := t.strides(minRank)
	if err != nil {
		return FullyContiguous{}, err
	}
	if t.Shape[0] < k.NumBlocks {
		return FullyContiguous{}, fmt.Errorf("first axis %d: want at least num_blocks %d", t.Shape[0], k.NumBlocks)
	}
	if k.NumLayers != 0 && t.Shape[1] != k.NumLayers {
		return FullyContiguous{}, fmt.Errorf("second axis %d: want num_layers %d", t.Shape[1], k.NumLayers)
	}
	c := candidate{blocks: 0, outer: 2, page: 3}
	if k.OuterDim == 1 && (len(t.Shape) == 3 || t.Shape[2] != 1) {
		c = candidate{blocks: 0, outer: noAxis, page: 2}
	}
	cfg, err := c.config(t, k, t.Shape[1])
	if err != nil {
		return FullyContiguous{}, err
	}
	l, err := NewFullyContiguous(cfg)
	if err != nil {
		return FullyContiguous{}, err
	}
	if err := densePage(t.Shape[c.page:], strides[c.page:]); err != nil {
		return FullyContiguous{}, err
	}
	for _, a := range []struct {
		name string
		axis int
		want uint64 // bytes
	}{{"block", 0, l.blockStride}, {"layer", 1, l.layerStride}, {"outer", c.outer, l.outerStride}} {
		if a.axis == noAxis || t.Shape[a.axis] == 1 {
			continue
		}
		if want := a.want / cfg.DTypeBytes; strides[a.axis] != want {
			return FullyContiguous{}, fmt.Errorf("%s stride %d: want %d elements, so that nothing lies between", a.name, strides[a.axis], want)
		}
	}
	return l, nil
}

// noAxis stands for an axis that a tensor does not have.
const noAxis = -1

// candidate is one way to read a tensor: which axis counts the blocks, which
// the outer indices, and from which on the axes are one page.
type candidate struct{ blocks, outer, page int }

// config is the geometry of t if c is the right way to read it.
func (c candidate) config(t Tensor, k Known, layers uint64) (Config, error) {
	cfg := Config{NumBlocks: t.Shape[c.blocks], NumLayers: layers, OuterDim: 1, PageSize: k.PageSize, DTypeBytes: k.DTypeBytes}
	if c.outer != noAxis {
		cfg.OuterDim = t.Shape[c.outer]
	}
	if k.OuterDim != 0 && cfg.OuterDim != k.OuterDim {
		return Config{}, fmt.Errorf("outer axis %d: want outer_dim %d", cfg.OuterDim, k.OuterDim)
	}
	page := t.Shape[c.page:]
	elements := product(page)
	if elements%k.PageSize != 0 || len(page) > 1 && !slices.Contains(page, k.PageSize) {
		return Config{}, fmt.Errorf("page %v of %d elements: want page_size %d among its axes", page, elements, k.PageSize)
	}
	cfg.InnerDim = elements / k.PageSize
	if k.InnerDim != 0 && cfg.InnerDim != k.InnerDim {
		return Config{}, fmt.Errorf("page %v of %d elements: want page_size %d times inner_dim %d", page, elements, k.PageSize, k.InnerDim)
	}
	return cfg, cfg.Validate()
}

// strides is t's strides in elements. It checks that t has at least minRank
// axes, none of them empty.
func (t Tensor) strides(minRank int) ([]uint64, error) {
	if len(t.Shape) < minRank {
		return nil, fmt.Errorf("rank %d: want at least %d", len(t.Shape), minRank)
	}
	if i := slices.Index(t.Shape, 0); i >= 0 {
		return nil, fmt.Errorf("axis %d is 0: want at least 1", i)
	}
	if t.Strides == nil {
		strides := make([]uint64, len(t.Shape))
		for i := range strides {
			strides[i] = product(t.Shape[i+1:])
		}
		return strides, nil
	}
	if len(t.Strides) != len(t.Shape) {
		return nil, fmt.Errorf("strides %v: want %d of them", t.Strides, len(t.Shape))
	}
	return t.Strides, nil
}

// densePage reports a gap or an overlap between the elements of a page, which
// may be laid out with its axes in any order.
func densePage(shape, strides []uint64) error {
	axes := make([]int, 0, len(shape))
	for i, n := range shape {
		if n > 1 {
			axes = append(axes, i)
		}
	}
	slices.SortFunc(axes, func(a, b int) int { return cmp.Compare(strides[a], strides[b]) })
	want := uint64(1)
	for _, i := range axes {
		if strides[i] != want {
			return fmt.Errorf("page %v with strides %v is not contiguous: stride %d: want %d", shape, strides, strides[i], want)
		}
		want *= shape[i]
	}
	return nil
}

// product saturates: what does not fit is refused as too large for any field.
func product(shape []uint64) uint64 {
	p := uint64(1)
	for _, n := range shape {
		hi, lo := bits.Mul64(p, n)
		if hi != 0 {
			return math.MaxUint64
		}
		p = lo
	}
	return p
}
