package layout

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// memory is the bytes of a layout's storages, each from its aligned base on.
type memory [][]byte

func newMemory(l Layout, fill func(i int) byte) memory {
	m := make(memory, l.Storages())
	for s := range m {
		m[s] = make([]byte, l.DataBytes())
		for i := range m[s] {
			m[s][i] = fill(i + s*31)
		}
	}
	return m
}

// run executes a plan in its order.
func (m memory) run(plan []Copy, src memory) {
	for _, c := range plan {
		copy(m[c.DstStorage][c.DstOffset:c.DstOffset+c.Bytes], src[c.SrcStorage][c.SrcOffset:c.SrcOffset+c.Bytes])
	}
}

// naiveCopy moves pairs element by element, by the walked places alone.
func naiveCopy(dst, src memory, to, from *naive, c Config, pairs []BlockPair) {
	for _, p := range pairs {
		for l := range c.NumLayers {
			for o := range c.OuterDim {
				a, b := from.places[index{p.Src, l, o}], to.places[index{p.Dst, l, o}]
				for e := range c.PageSize * c.InnerDim {
					for i := range c.DTypeBytes {
						dst[b.Storage][b.Offset+e*c.DTypeBytes+i] = src[a.Storage][a.Offset+e*c.DTypeBytes+i]
					}
				}
			}
		}
	}
}

func drawPairs(t *rapid.T, src, dst Layout) []BlockPair {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) BlockPair {
		return BlockPair{
			Src: rapid.Uint64Range(0, src.Config().NumBlocks-1).Draw(t, "src"),
			Dst: rapid.Uint64Range(0, dst.Config().NumBlocks-1).Draw(t, "dst"),
		}
	}), 0, 8).Draw(t, "pairs")
}

func TestPlansMoveTheBytesOfANaiveCopyAndNoOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawGeometry(t)
		src, dst := drawLayout(t, c, "source"), drawLayout(t, c, "destination")
		pairs := drawPairs(t, src, dst)
		p := must(NewPlanner(src, dst))(t)
		plan := must(p.Append(nil, pairs))(t)

		from := newMemory(src, func(i int) byte { return byte(i*7 + 1) })
		got, want := newMemory(dst, func(int) byte { return 0xee }), newMemory(dst, func(int) byte { return 0xee })
		got.run(plan, from)
		naiveCopy(want, from, dst.naive, src.naive, c, pairs)
		for s := range want {
			if !bytes.Equal(got[s], want[s]) {
				t.Fatalf("%s to %s, %v: storage %d differs after\n%v", src.name, dst.name, pairs, s, plan)
			}
		}
		var n uint64
		for _, x := range plan {
			n += x.Bytes
		}
		if want := uint64(len(pairs)) * src.BlockBytes(); n != want {
			t.Fatalf("%d pairs move %d bytes, want %d", len(pairs), n, want)
		}
		if again := must(p.Append(nil, pairs))(t); !slices.Equal(again, plan) {
			t.Fatalf("second plan %v, first %v", again, plan)
		}
	})
}

// With ascending blocks no two copies of a plan could be one, however far apart
// they stand in it.
func TestPlansOfAscendingBlocksAreAsShortAsTheyCanBe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawGeometry(t)
		src, dst := drawLayout(t, c, "source"), drawLayout(t, c, "destination")
		var pairs []BlockPair
		for b := range min(src.Config().NumBlocks, dst.Config().NumBlocks) {
			if rapid.Bool().Draw(t, "take") {
				pairs = append(pairs, BlockPair{b, b})
			}
		}
		p := must(NewPlanner(src, dst))(t)
		plan := must(p.Append(nil, pairs))(t)
		for i, a := range plan {
			for j, b := range plan {
				if i != j && a.extend(
					Place{b.SrcStorage, Region{b.SrcOffset, b.Bytes}},
					Place{b.DstStorage, Region{b.DstOffset, b.Bytes}}) {
					t.Fatalf("%s to %s: copies %d and %d could be one: %v", src.name, dst.name, i, j, plan)
				}
			}
		}
	})
}

func TestPlanIsAppendedAndWhatWasThereIsKept(t *testing.T) {
	l := must(NewFullyContiguous(Config{NumBlocks: 4, NumLayers: 2, OuterDim: 2, PageSize: 1, InnerDim: 1, DTypeBytes: 1}))(t)
	p := must(NewPlanner(l, l))(t)
	plan := must(p.Append(nil, []BlockPair{{0, 1}}))(t)
	// The next block would extend the copy; that one is somebody else's.
	plan = must(p.Append(plan, []BlockPair{{1, 2}, {2, 3}}))(t)
	want := []Copy{{SrcOffset: 0, DstOffset: 4, Bytes: 4}, {SrcOffset: 4, DstOffset: 8, Bytes: 8}}
	if !slices.Equal(plan, want) {
		t.Errorf("plan %v, want %v", plan, want)
	}
	for _, c := range []struct {
		pair BlockPair
		want string
	}{
		{BlockPair{4, 0}, "plan copies: pair 1: source block 4: want 0 to 3"},
		{BlockPair{0, 9}, "plan copies: pair 1: destination block 9: want 0 to 3"},
	} {
		got, err := p.Append(plan, []BlockPair{{0, 1}, c.pair})
		if err == nil || err.Error() != c.want || !slices.Equal(got, want) {
			t.Errorf("plan %v, error %v, want %q and the plan as it was", got, err, c.want)
		}
	}
}

func TestPlansNeedEqualGeometry(t *testing.T) {
	c := Config{NumBlocks: 4, NumLayers: 2, OuterDim: 2, PageSize: 16, InnerDim: 8, DTypeBytes: 2}
	src := must(NewFullyContiguous(c))(t)
	for _, x := range []struct {
		change func(*Config)
		want   string // empty: allowed
	}{
		{func(c *Config) { c.NumBlocks, c.Alignment = 9, 4096 }, ""},
		{func(c *Config) { c.NumLayers = 3 }, "plan copies: layout num_layers 2: want 3 as on the other side"},
		{func(c *Config) { c.OuterDim = 1 }, "plan copies: layout outer_dim 2: want 1 as on the other side"},
		{func(c *Config) { c.PageSize = 32 }, "plan copies: layout page_size 16: want 32 as on the other side"},
		{func(c *Config) { c.InnerDim = 4 }, "plan copies: layout inner_dim 8: want 4 as on the other side"},
		{func(c *Config) { c.DTypeBytes = 1 }, "plan copies: layout dtype_width_bytes 2: want 1 as on the other side"},
	} {
		other := c
		x.change(&other)
		_, err := NewPlanner(src, must(NewLayerSeparate(other, OuterFirst))(t))
		if got := errorText(err); got != x.want {
			t.Errorf("got %q, want %q", got, x.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// llama is Llama-3.1-8B with 16 tokens: 2 MiB a block in 64 regions.
func llama(blocks uint64) Config {
	return Config{NumBlocks: blocks, NumLayers: 32, OuterDim: 2, PageSize: 16, InnerDim: 1024, Alignment: 4096, DTypeBytes: 2}
}

func TestPlanningIntoARoomyPlanDoesNotAllocate(t *testing.T) {
	src, dst := must(NewLayerSeparate(llama(64), OuterFirst))(t), must(NewFullyContiguous(llama(64)))(t)
	p := must(NewPlanner(src, dst))(t)
	pairs := []BlockPair{{3, 0}, {5, 1}, {9, 2}}
	plan := must(p.Append(nil, pairs))(t)
	if n := testing.AllocsPerRun(20, func() { plan, _ = p.Append(plan[:0], pairs) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkPlan(b *testing.B) {
	contiguous := must(NewFullyContiguous(llama(64)))(b)
	for _, x := range []struct {
		name string
		src  Layout
	}{
		{"contiguous", contiguous},
		{"block-first", must(NewLayerSeparate(llama(64), BlockFirst))(b)},
		{"outer-first", must(NewLayerSeparate(llama(64), OuterFirst))(b)},
	} {
		b.Run(x.name+"-to-contiguous", func(b *testing.B) {
			b.ReportAllocs()
			p := must(NewPlanner(x.src, contiguous))(b)
			pairs := make([]BlockPair, 16)
			for i := range pairs {
				pairs[i] = BlockPair{uint64(3 * i), uint64(i)}
			}
			plan := must(p.Append(nil, pairs))(b)
			for b.Loop() {
				plan, _ = p.Append(plan[:0], pairs)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(pairs)), "ns/block")
		})
	}
}
