package layout

import (
	"errors"
	"fmt"
	"slices"
)

// DetectLayerSeparate reads the layout of a cache that is one tensor per
// layer, as vLLM registers it: [blocks, outer, …] or [outer, blocks, …], or
// [blocks, …] without an outer axis for MLA and fused caches. The other axes
// are one page and may lie in any order. All tensors must be equal. The layout
// has as many blocks as the tensors.
//
// The block axis is the first one with at least NumBlocks elements, of the
// first two. Where there is none, or where both readings fit the shape (with
// one or two blocks and no OuterDim given), the shape is refused rather than
// guessed. The strides then say in which order the axes lie in memory: a shape
// with blocks first may well have K of all blocks before V of all blocks. A
// tensor whose pages are not contiguous, or with gaps between its pages, is
// refused.
func DetectLayerSeparate(layers []Tensor, k Known) (LayerSeparate, error) {
	if len(layers) == 0 {
		return LayerSeparate{}, errors.New("detect layout: no tensors: want one per layer")
	}
	if k.NumLayers != 0 && k.NumLayers != uint64(len(layers)) {
		return LayerSeparate{}, fmt.Errorf("detect layout: %d tensors: want num_layers %d", len(layers), k.NumLayers)
	}
	first := layers[0]
	for i, t := range layers {
		if !slices.Equal(t.Shape, first.Shape) || !slices.Equal(t.Strides, first.Strides) {
			return LayerSeparate{}, fmt.Errorf("detect layout: tensor %d is %v with strides %v: want %v with strides %v as tensor 0",
				i, t.Shape, t.Strides, first.Shape, first.Strides)
		}
	}
	l, err := detectLayer(first, k, uint64(len(layers)))
	if err != nil {
		return LayerSeparate{}, fmt.Errorf("detect layout of %d tensors %v: %w", len(layers), first.Shape, err)
	}
	return l, nil
}

func detectLayer(t Tensor, k Known, layers uint64) (LayerSeparate, error) {
	if err := k.validate(); err != nil {
		return LayerSeparate{}, err
	}
	strides, err := t.strides(3)
	if err != nil {
		return LayerSeparate{}, err
	}
	c, cfg, err := readLayer(t, k, layers)
	if err != nil {
		return LayerSeparate{}, err
	}
	if err := densePage(t.Shape[c.page:], strides[c.page:]); err != nil {
		return LayerSeparate{}, err
	}
	return orderInMemory(t, strides, c, cfg)
}

// readLayer decides which axes of a layer's tensor are blocks and outer index.
func readLayer(t Tensor, k Known, layers uint64) (candidate, Config, error) {
	blockFirst, outerFirst := candidate{blocks: 0, outer: 1, page: 2}, candidate{blocks: 1, outer: 0, page: 2}
	if n := t.Shape[1]; n > 2 || k.OuterDim == 1 && n != 1 {
		blockFirst = candidate{blocks: 0, outer: noAxis, page: 1}
	}
	var possible []candidate
	if t.Shape[0] >= k.NumBlocks {
		possible = append(possible, blockFirst)
	}
	if t.Shape[1] >= k.NumBlocks && t.Shape[0] <= 2 {
		possible = append(possible, outerFirst)
	}
	if len(possible) == 0 {
		return candidate{}, Config{}, fmt.Errorf("first two axes %d and %d: want num_blocks %d at most the first, or at most the second with 1 or 2 as the first",
			t.Shape[0], t.Shape[1], k.NumBlocks)
	}
	var found []candidate
	var cfg Config
	var firstErr error
	for _, c := range possible {
		got, err := c.config(t, k, layers)
		switch {
		case err == nil && len(found) == 0:
			found, cfg = append(found, c), got
		case err == nil:
			found = append(found, c)
		case firstErr == nil:
			firstErr = err
		}
	}
	switch {
	case len(found) == 0:
		return candidate{}, Config{}, firstErr
	case len(found) == 2 && (t.Shape[0] > 1 || t.Shape[1] > 1):
		return candidate{}, Config{}, fmt.Errorf("axis 0 (%d) and axis 1 (%d) can both count the blocks with num_blocks %d: want a shape, or outer_dim and inner_dim, that leave one",
			t.Shape[0], t.Shape[1], k.NumBlocks)
	}
	return found[0], cfg, nil
}

// orderInMemory finds the order whose strides are the tensor's. The stride of
// an axis with one element says nothing; where both orders are the same memory
// it is BlockFirst.
func orderInMemory(t Tensor, strides []uint64, c candidate, cfg Config) (LayerSeparate, error) {
	matches := func(axis int, wantBytes uint64) bool {
		return axis == noAxis || t.Shape[axis] == 1 || strides[axis] == wantBytes/cfg.DTypeBytes
	}
	for _, o := range []Order{BlockFirst, OuterFirst} {
		l, err := NewLayerSeparate(cfg, o)
		if err != nil {
			return LayerSeparate{}, err
		}
		if matches(c.blocks, l.blockStride) && matches(c.outer, l.outerStride) {
			return l, nil
		}
	}
	page := cfg.PageSize * cfg.InnerDim
	want := fmt.Sprintf("%d between blocks", page)
	if cfg.OuterDim > 1 {
		want = fmt.Sprintf("%d between blocks and %d between outer indices, or %d and %d",
			page*cfg.OuterDim, page, page, page*cfg.NumBlocks)
	}
	return LayerSeparate{}, fmt.Errorf("strides %v: want %s", strides, want)
}
