package layout

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestRegionTables prints the sizes, strides and regions of layouts. Arguments of the
// command layout: blocks, layers, outer, page, inner, dtype, align (the geometry;
// inner is that of one rank), kind (contiguous, block-first, outer-first,
// sharded:R/N or replicated:R/N, rank R of N).
func TestRegionTables(t *testing.T) {
	datadriven.Walk(t, "testdata/regions", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "layout" {
				t.Fatalf("unknown command %q", d.Cmd)
			}
			return table(t, goldenLayout(t, d))
		})
	})
}

func goldenLayout(t *testing.T, d *datadriven.TestData) Layout {
	c := Config{OuterDim: 1, PageSize: 1, InnerDim: 1, DTypeBytes: 1}
	for arg, field := range map[string]*uint64{
		"blocks": &c.NumBlocks, "layers": &c.NumLayers, "outer": &c.OuterDim, "page": &c.PageSize,
		"inner": &c.InnerDim, "dtype": &c.DTypeBytes, "align": &c.Alignment,
	} {
		d.MaybeScanArgs(t, arg, field)
	}
	var kind string
	d.ScanArgs(t, "kind", &kind)
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
