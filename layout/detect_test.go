package layout

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func tensors(n int, t Tensor) []Tensor { return slices.Repeat([]Tensor{t}, n) }

// What engines register, and the geometry that it is. Page 16, two bytes.
func TestLayersOfKnownEnginesAreDetected(t *testing.T) {
	known := Known{NumBlocks: 100, PageSize: 16, DTypeBytes: 2}
	mla := known
	mla.OuterDim, mla.InnerDim = 1, 576
	fused := known
	fused.OuterDim, fused.InnerDim = 1, 2*8*64
	for _, c := range []struct {
		name          string
		tensor        Tensor
		known         Known
		order         Order
		blocks, outer uint64
		inner         uint64
	}{
		{"K and V first", Tensor{Shape: []uint64{2, 100, 16, 8, 64}}, known, OuterFirst, 100, 2, 512},
		{"blocks first", Tensor{Shape: []uint64{100, 2, 16, 8, 64}}, known, BlockFirst, 100, 2, 512},
		{"more blocks than the engine manages", Tensor{Shape: []uint64{2, 101, 16, 8, 64}}, known, OuterFirst, 101, 2, 512},
		{"heads before tokens", Tensor{[]uint64{2, 100, 16, 8, 64}, []uint64{100 * 8192, 8192, 64, 1024, 1}}, known, OuterFirst, 100, 2, 512},
		{"blocks first in the shape, K and V first in memory",
			Tensor{[]uint64{100, 2, 16, 8, 64}, []uint64{8192, 100 * 8192, 512, 64, 1}}, known, OuterFirst, 100, 2, 512},
		{"K and V first in the shape, blocks first in memory",
			Tensor{[]uint64{2, 100, 16, 8, 64}, []uint64{8192, 2 * 8192, 512, 64, 1}}, known, BlockFirst, 100, 2, 512},
		{"MLA", Tensor{Shape: []uint64{100, 16, 576}}, mla, BlockFirst, 100, 1, 576},
		{"MLA, from the shape alone", Tensor{Shape: []uint64{100, 16, 576}}, known, BlockFirst, 100, 1, 576},
		{"K and V fused", Tensor{Shape: []uint64{100, 8, 16, 128}}, fused, BlockFirst, 100, 1, 1024},
		{"K and V fused, tokens first in memory",
			Tensor{[]uint64{100, 8, 16, 128}, []uint64{16384, 128, 1024, 1}}, fused, BlockFirst, 100, 1, 1024},
		{"K and V fused, one head", Tensor{Shape: []uint64{100, 1, 16, 1024}}, fused, BlockFirst, 100, 1, 1024},
		{"a flat page", Tensor{Shape: []uint64{100, 2, 8192}}, known, BlockFirst, 100, 2, 512},
		{"one block, told by the hints", Tensor{Shape: []uint64{1, 16, 576}},
			Known{NumBlocks: 1, PageSize: 16, DTypeBytes: 2, OuterDim: 1, InnerDim: 576}, BlockFirst, 1, 1, 576},
		{"an outer axis of one in front", Tensor{Shape: []uint64{1, 100, 16, 8, 64}}, known, BlockFirst, 100, 1, 512},
		{"the stride of a single block says nothing", Tensor{[]uint64{1, 1, 16, 64}, []uint64{7, 9, 64, 1}},
			Known{NumBlocks: 1, PageSize: 16, DTypeBytes: 2}, BlockFirst, 1, 1, 64},
	} {
		l, err := DetectLayerSeparate(tensors(3, c.tensor), c.known)
		want := Config{NumBlocks: c.blocks, NumLayers: 3, OuterDim: c.outer, PageSize: 16, InnerDim: c.inner, DTypeBytes: 2}
		if err != nil || l.Order() != c.order || l.Config() != want {
			t.Errorf("%s: %s of %+v, %v; want %s of %+v", c.name, l.Order(), l.Config(), err, c.order, want)
		}
	}
}

func TestContiguousTensorsAreDetected(t *testing.T) {
	known := Known{NumBlocks: 100, PageSize: 16, DTypeBytes: 2}
	fused := known
	fused.NumLayers, fused.OuterDim, fused.InnerDim = 4, 1, 1024
	for _, c := range []struct {
		name   string
		tensor Tensor
		known  Known
		outer  uint64
		inner  uint64
	}{
		{"a flat page", Tensor{Shape: []uint64{100, 4, 2, 8192}}, known, 2, 512},
		{"heads first", Tensor{Shape: []uint64{100, 4, 2, 8, 16, 64}}, known, 2, 512},
		{"tokens first in memory", Tensor{[]uint64{100, 4, 2, 8, 16, 64}, []uint64{65536, 16384, 8192, 64, 512, 1}}, known, 2, 512},
		{"MLA", Tensor{Shape: []uint64{100, 4, 1, 16, 576}}, known, 1, 576},
		{"no outer axis", Tensor{Shape: []uint64{100, 4, 16, 8, 128}}, fused, 1, 1024},
		{"no outer axis, a flat page", Tensor{Shape: []uint64{100, 4, 16384}}, fused, 1, 1024},
	} {
		l, err := DetectFullyContiguous(c.tensor, c.known)
		want := Config{NumBlocks: 100, NumLayers: 4, OuterDim: c.outer, PageSize: 16, InnerDim: c.inner, DTypeBytes: 2}
		if err != nil || l.Config() != want {
			t.Errorf("%s: %+v, %v; want %+v", c.name, l.Config(), err, want)
		}
	}
}

func TestNumberOfBlocksIsInferredFromTheShape(t *testing.T) {
	for _, c := range []struct {
		shape []uint64
		mla   bool
		want  uint64
	}{
		{[]uint64{2, 100, 16, 8, 64}, false, 100},
		{[]uint64{100, 2, 16, 8, 64}, false, 100},
		{[]uint64{100, 16, 576}, true, 100},
		{[]uint64{10, 16, 576}, true, 10},
	} {
		n, err := InferNumBlocks(c.shape, c.mla)
		if n != c.want || err != nil {
			t.Errorf("%v: %d blocks, %v, want %d", c.shape, n, err, c.want)
		}
		k := Known{NumBlocks: n, PageSize: 16, DTypeBytes: 2}
		if c.mla {
			k.OuterDim, k.InnerDim = 1, 576
		}
		if l, err := DetectLayerSeparate(tensors(1, Tensor{Shape: c.shape}), k); err != nil || l.Config().NumBlocks != n {
			t.Errorf("%v: %d blocks detected, %v, want %d", c.shape, l.Config().NumBlocks, err, n)
		}
	}
	if _, err := InferNumBlocks([]uint64{100, 16}, true); errorText(err) != "infer num_blocks of tensor [100 16]: rank 2: want at least 3" {
		t.Errorf("got %v", err)
	}
}

// A tensor that is laid out by a layout's own strides is detected as that
// layout, and one stride changed makes it another or an error.
func TestDetectionFindsTheLayoutThatATensorWasMadeOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawGeometry(t)
		c.NumBlocks = rapid.Uint64Range(3, 9).Draw(t, "blocks") // more than any outer axis
		k := Known{NumBlocks: c.NumBlocks, PageSize: c.PageSize, DTypeBytes: c.DTypeBytes, OuterDim: c.OuterDim, InnerDim: c.InnerDim}
		order := rapid.SampledFrom([]Order{BlockFirst, OuterFirst}).Draw(t, "order")
		want := must(NewLayerSeparate(c, order))(t)
		blockStride, outerStride := want.blockStride/c.DTypeBytes, want.outerStride/c.DTypeBytes
		tensor := Tensor{[]uint64{c.NumBlocks, c.OuterDim, c.PageSize, c.InnerDim}, []uint64{blockStride, outerStride, c.InnerDim, 1}}
		if rapid.Bool().Draw(t, "outer axis first") {
			tensor = Tensor{[]uint64{c.OuterDim, c.NumBlocks, c.PageSize, c.InnerDim}, []uint64{outerStride, blockStride, c.InnerDim, 1}}
		}
		got, err := DetectLayerSeparate(tensors(int(c.NumLayers), tensor), k)
		if err != nil {
			t.Fatal(err)
		}
		if got.Config() != c || got.DataBytes() != want.DataBytes() {
			t.Fatalf("got %+v, want %+v", got.Config(), c)
		}
		for b := range c.NumBlocks {
			for o := range c.OuterDim {
				if got, want := must(got.Place(b, 0, o))(t), must(want.Place(b, 0, o))(t); got != want {
					t.Fatalf("region (%d, %d) at %v, want %v", b, o, got, want)
				}
			}
		}
		axis := rapid.IntRange(0, 3).Draw(t, "axis")
		if tensor.Shape[axis] == 1 {
			return
		}
		changed := Tensor{tensor.Shape, slices.Clone(tensor.Strides)}
		changed.Strides[axis] += rapid.Uint64Range(1, 3).Draw(t, "more")
		if l, err := DetectLayerSeparate(tensors(int(c.NumLayers), changed), k); err == nil {
			t.Fatalf("strides %v, made of %v, detected as %s", changed.Strides, tensor.Strides, l.Order())
		}
	})
}

func TestShapesThatSayNothingSureAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		shape  []uint64
		change func(*Known)
		want   string
	}{
		{"neither axis has the blocks", []uint64{2, 99, 16, 8, 64}, nil,
			"first two axes 2 and 99: want num_blocks 100 at most the first, or at most the second with 1 or 2 as the first"},
		{"the second axis has, but the first is no outer axis", []uint64{3, 100, 16, 8, 64}, nil, "first two axes 3 and 100: want num_blocks 100"},
		{"both axes may have", []uint64{2, 100, 16, 8, 64}, func(k *Known) { k.NumBlocks = 2 },
			"axis 0 (2) and axis 1 (100) can both count the blocks with num_blocks 2: want a shape, or outer_dim and inner_dim, that leave one"},
		{"both axes may have, equally", []uint64{2, 2, 16, 8, 64}, func(k *Known) { k.NumBlocks = 2 }, "axis 0 (2) and axis 1 (2) can both"},
		{"one block or two", []uint64{1, 2, 16, 8, 64}, func(k *Known) { k.NumBlocks = 1 }, "axis 0 (1) and axis 1 (2) can both"},
		{"too few axes", []uint64{100, 16}, nil, "rank 2: want at least 3"},
		{"an empty axis", []uint64{100, 2, 0, 64}, nil, "axis 2 is 0: want at least 1"},
		{"another page size", []uint64{2, 100, 32, 8, 64}, nil, "page [32 8 64] of 16384 elements: want page_size 16 among its axes"},
		{"a flat page that is no multiple", []uint64{2, 100, 8191}, nil, "page [8191] of 8191 elements: want page_size 16"},
		{"another inner dimension", []uint64{100, 16, 512}, func(k *Known) { k.OuterDim, k.InnerDim = 1, 576 },
			"page [16 512] of 8192 elements: want page_size 16 times inner_dim 576"},
		{"another outer dimension", []uint64{100, 16, 576}, func(k *Known) { k.OuterDim, k.InnerDim = 2, 288 }, "outer axis 1: want outer_dim 2"},
		{"half of a hint", []uint64{100, 16, 576}, func(k *Known) { k.OuterDim = 1 }, "layout outer_dim 1, inner_dim 0: want both or neither"},
		{"no blocks", []uint64{100, 16, 576}, func(k *Known) { k.NumBlocks = 0 }, "layout num_blocks 0: want 1 to 4294967295"},
		{"no page size", []uint64{100, 16, 576}, func(k *Known) { k.PageSize = 0 }, "layout page_size 0: want 1 to 4096"},
		{"no element size", []uint64{100, 16, 576}, func(k *Known) { k.DTypeBytes = 0 }, "layout dtype_width_bytes 0: want 1 to 8"},
		{"a page of too many elements", []uint64{100, 2, 16, 1 << 30}, nil, "layout inner_dim 1073741824: want 1 to 16777216"},
		{"more elements than can be counted", []uint64{100, 2, 16, 1 << 40, 1 << 40}, nil, "page [16 1099511627776 1099511627776]"},
		{"another number of layers", []uint64{100, 2, 16, 8, 64}, func(k *Known) { k.NumLayers = 3 }, "detect layout: 2 tensors: want num_layers 3"},
	} {
		k := Known{NumBlocks: 100, PageSize: 16, DTypeBytes: 2}
		if c.change != nil {
			c.change(&k)
		}
		_, err := DetectLayerSeparate(tensors(2, Tensor{Shape: c.shape}), k)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
	k := Known{NumBlocks: 100, PageSize: 16, DTypeBytes: 2}
	if _, err := DetectLayerSeparate(nil, k); errorText(err) != "detect layout: no tensors: want one per layer" {
		t.Errorf("got %v", err)
	}
	unequal := []Tensor{{Shape: []uint64{100, 2, 16, 8, 64}}, {Shape: []uint64{100, 2, 16, 4, 64}}}
	if _, err := DetectLayerSeparate(unequal, k); err == nil || !strings.Contains(err.Error(), "tensor 1 is [100 2 16 4 64]") {
		t.Errorf("got %v", err)
	}
}

func TestStridesThatTearAPageOrLeaveGapsAreRefused(t *testing.T) {
	k := Known{NumBlocks: 100, PageSize: 16, DTypeBytes: 2}
	shape := []uint64{100, 2, 16, 8, 64}
	for _, c := range []struct {
		name    string
		strides []uint64
		want    string
	}{
		{"K and V side by side in each token", []uint64{16384, 512, 1024, 64, 1},
			"page [16 8 64] with strides [1024 64 1] is not contiguous: stride 1024: want 512"},
		{"every second element", []uint64{32768, 16384, 1024, 128, 2}, "is not contiguous: stride 2: want 1"},
		{"an expanded axis", []uint64{16384, 8192, 512, 0, 1}, "is not contiguous: stride 0: want 1"},
		{"padded blocks", []uint64{20480, 8192, 512, 64, 1},
			"strides [20480 8192 512 64 1]: want 16384 between blocks and 8192 between outer indices, or 8192 and 819200"},
		{"too few", []uint64{16384, 8192}, "strides [16384 8192]: want 5 of them"},
	} {
		_, err := DetectLayerSeparate(tensors(2, Tensor{shape, c.strides}), k)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
	gapped := Tensor{[]uint64{100, 16, 576}, []uint64{9220, 576, 1}}
	if _, err := DetectLayerSeparate(tensors(2, gapped), k); err == nil || !strings.Contains(err.Error(), "want 9216 between blocks") {
		t.Errorf("got %v", err)
	}
}

func TestTensorsThatAreNotContiguousAreRefused(t *testing.T) {
	shape := []uint64{100, 4, 2, 16, 512}
	for _, c := range []struct {
		name   string
		tensor Tensor
		change func(*Known)
		want   string
	}{
		{"layers before blocks in memory", Tensor{shape, []uint64{16384, 1638400, 8192, 512, 1}}, nil, "block stride 16384: want 65536 elements"},
		{"outer indices before layers", Tensor{shape, []uint64{65536, 8192, 32768, 512, 1}}, nil, "layer stride 8192: want 16384 elements"},
		{"outer indices apart", Tensor{shape, []uint64{65536, 16384, 8193, 512, 1}}, nil, "outer stride 8193: want 8192 elements"},
		{"a torn page", Tensor{shape, []uint64{65536, 16384, 512, 1024, 1}}, nil, "is not contiguous: stride 1024: want 512"},
		{"too few axes", Tensor{Shape: []uint64{100, 4, 2}}, nil, "rank 3: want at least 4"},
		{"too few blocks", Tensor{Shape: []uint64{99, 4, 2, 16, 512}}, nil, "first axis 99: want at least num_blocks 100"},
		{"other layers", Tensor{Shape: shape}, func(k *Known) { k.NumLayers = 5 }, "second axis 4: want num_layers 5"},
		{"three outer indices", Tensor{Shape: []uint64{100, 4, 3, 16, 512}}, nil, "layout outer_dim 3: want 1 to 2"},
		{"half of a hint", Tensor{Shape: shape}, func(k *Known) { k.InnerDim = 1 }, "layout outer_dim 0, inner_dim 1: want both or neither"},
	} {
		k := Known{NumBlocks: 100, PageSize: 16, DTypeBytes: 2}
		if c.change != nil {
			c.change(&k)
		}
		_, err := DetectFullyContiguous(c.tensor, k)
		if err == nil || !strings.HasPrefix(err.Error(), "detect layout of tensor [") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// Whatever the axes' extents and their order in memory: a layout that is
// detected covers the tensor's elements, all of them and nothing else.
func TestDetectedLayoutsCoverTheTensor(t *testing.T) {
	detected := 0
	rapid.Check(t, func(t *rapid.T) {
		shape := []uint64{
			rapid.Uint64Range(1, 6).Draw(t, "axis 0"), rapid.Uint64Range(1, 6).Draw(t, "axis 1"),
			rapid.Uint64Range(1, 4).Draw(t, "axis 2"), rapid.Uint64Range(1, 4).Draw(t, "axis 3"),
		}
		strides, n := make([]uint64, len(shape)), uint64(1)
		for _, axis := range rapid.Permutation([]int{0, 1, 2, 3}).Draw(t, "innermost first") {
			strides[axis] = n
			n *= shape[axis]
		}
		tensor := Tensor{Shape: shape, Strides: strides}
		k := Known{NumBlocks: rapid.Uint64Range(1, 6).Draw(t, "blocks"), PageSize: rapid.Uint64Range(1, 4).Draw(t, "page"), DTypeBytes: 1}
		l, err := DetectLayerSeparate([]Tensor{tensor}, k)
		if err != nil {
			return
		}
		detected++
		if l.DataBytes() != n || l.BlockBytes()*l.Config().NumBlocks != n {
			t.Fatalf("%v with strides %v: %d bytes detected as %d, %+v", shape, strides, n, l.DataBytes(), l.Config())
		}
		// A page of the tensor, one index of the first two axes, is inside one block.
		blockOf := make(map[uint64]uint64)
		for b := range l.Config().NumBlocks {
			for o := range l.Config().OuterDim {
				p := must(l.Place(b, 0, o))(t)
				for i := p.Offset; i < p.End(); i++ {
					blockOf[i] = b
				}
			}
		}
		for i := range shape[0] {
			for j := range shape[1] {
				first := blockOf[i*strides[0]+j*strides[1]]
				for x := range shape[2] {
					for y := range shape[3] {
						at := i*strides[0] + j*strides[1] + x*strides[2] + y*strides[3]
						if b, ok := blockOf[at]; !ok || b != first {
							t.Fatalf("%v with strides %v as %s: element %d is in block %d, its page begins in %d", shape, strides, l.Order(), at, b, first)
						}
					}
				}
			}
		}
	})
	if detected == 0 {
		t.Error("no tensor was detected: the check saw nothing")
	}
}
