package layout

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestRegionTables prints layouts region by region, and plans copy by copy.
// Arguments: blocks, layers, outer, page, inner, dtype, align (the geometry;
// inner is that of one rank), kind (contiguous, block-first, outer-first,
// sharded:R/N or replicated:R/N, rank R of N). Commands:
//
//	layout   sizes, strides and every region
//	plan     from=kind to=kind, input lines "SRC DST": the copies
func TestRegionTables(t *testing.T) {
	for _, dir := range []string{"testdata/regions", "testdata/plans"} {
		datadriven.Walk(t, dir, func(t *testing.T, path string) {
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				switch d.Cmd {
				case "layout":
					return table(t, goldenLayout(t, d, "kind"))
				case "plan":
					return planTable(t, d)
				}
				t.Fatalf("unknown command %q", d.Cmd)
				return ""
			})
		})
	}
}

func goldenLayout(t *testing.T, d *datadriven.TestData, key string) Layout {
	c := Config{OuterDim: 1, PageSize: 1, InnerDim: 1, DTypeBytes: 1}
	for arg, field := range map[string]*uint64{
		"blocks": &c.NumBlocks, "layers": &c.NumLayers, "outer": &c.OuterDim, "page": &c.PageSize,
		"inner": &c.InnerDim, "dtype": &c.DTypeBytes, "align": &c.Alignment,
	} {
		d.MaybeScanArgs(t, arg, field)
	}
	var kind string
	d.ScanArgs(t, key, &kind)
	var rank, ranks uint64
	mode := Replicated
	switch kind {
	case "contiguous":
		return must(NewFullyContiguous(c))(t)
	case "block-first":
		return must(NewLayerSeparate(c, BlockFirst))(t)
	case "outer-first":
		return must(NewLayerSeparate(c, OuterFirst))(t)
	}
	if _, err := fmt.Sscanf(kind, "sharded:%d/%d", &rank, &ranks); err == nil {
		mode = LeaderWorkerSharded
		c.InnerDim *= ranks
	} else if _, err := fmt.Sscanf(kind, "replicated:%d/%d", &rank, &ranks); err != nil {
		t.Fatalf("unknown kind %q", kind)
	}
	s := must(NewSharding(must(NewFullyContiguous(c))(t), ranks, mode))(t)
	return must(s.Shard(rank))(t)
}

func table(t *testing.T, l Layout) string {
	var out strings.Builder
	c, s := l.Config(), l.Strides()
	fmt.Fprintf(&out, "storages %d, each data %d, total %d\n", l.Storages(), l.DataBytes(), l.TotalBytes())
	fmt.Fprintf(&out, "block %d bytes, alignment %d\n", l.BlockBytes(), c.alignment())
	fmt.Fprintf(&out, "strides: origin %d, block %d, layer %d, outer %d\n", s.Origin, s.Block, s.Layer, s.Outer)
	fmt.Fprintf(&out, "block layer outer  storage offset  size\n")
	for b := range c.NumBlocks {
		for layer := range c.NumLayers {
			for o := range c.OuterDim {
				p := must(l.Place(b, layer, o))(t)
				fmt.Fprintf(&out, "%5d %5d %5d  %7d %6d %5d\n", b, layer, o, p.Storage, p.Offset, p.Size)
			}
		}
	}
	return out.String()
}

func planTable(t *testing.T, d *datadriven.TestData) string {
	p := must(NewPlanner(goldenLayout(t, d, "from"), goldenLayout(t, d, "to")))(t)
	var pairs []BlockPair
	for line := range strings.Lines(d.Input) {
		var b BlockPair
		if _, err := fmt.Sscan(line, &b.Src, &b.Dst); err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, b)
	}
	var out strings.Builder
	for _, c := range must(p.Append(nil, pairs))(t) {
		fmt.Fprintf(&out, "%d:%-5d -> %d:%-5d %d bytes\n", c.SrcStorage, c.SrcOffset, c.DstStorage, c.DstOffset, c.Bytes)
	}
	return out.String()
}
