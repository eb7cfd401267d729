package layout

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// index names a region.
type index struct{ block, layer, outer uint64 }

// naive is a layout found by walking over memory, laying one region behind the
// other and skipping bytes until the alignment fits; nothing is multiplied but
// the size of a region.
type naive struct {
	places map[index]Place
	ends   []uint64 // where the walk ended in each storage
}

// walker is the position of the walk in one storage.
type walker struct {
	n       *naive
	storage int
	at      uint64
}

func newWalker(n *naive) *walker {
	if n.places == nil {
		n.places = make(map[index]Place)
	}
	n.ends = append(n.ends, 0)
	return &walker{n: n, storage: len(n.ends) - 1}
}

func (w *walker) align(a uint64) {
	for a > 1 && w.at%a != 0 {
		w.at++
	}
}

func (w *walker) put(i index, size uint64) {
	w.n.places[i] = Place{Storage: w.storage, Region: Region{Offset: w.at, Size: size}}
	w.at += size
	w.n.ends[w.storage] = w.at
}

func (w *walker) end(a uint64) {
	w.align(a)
	w.n.ends[w.storage] = w.at
}

func naiveRegion(c Config) uint64 {
	var n uint64
	for range c.PageSize {
		for range c.InnerDim {
			n += c.DTypeBytes
		}
	}
	return n
}

func naiveContiguous(c Config) *naive {
	n, r := &naive{}, naiveRegion(c)
	w := newWalker(n)
	for b := range c.NumBlocks {
		w.align(c.Alignment)
		for l := range c.NumLayers {
			for o := range c.OuterDim {
				w.put(index{b, l, o}, r)
			}
		}
	}
	return n
}

func naiveSeparate(c Config, order Order) *naive {
	n, r := &naive{}, naiveRegion(c)
	for l := range c.NumLayers {
		w := newWalker(n)
		if order == BlockFirst {
			for b := range c.NumBlocks {
				w.align(c.Alignment)
				for o := range c.OuterDim {
					w.put(index{b, l, o}, r)
				}
			}
		} else {
			for o := range c.OuterDim {
				for b := range c.NumBlocks {
					w.align(c.Alignment)
					w.put(index{b, l, o}, r)
				}
			}
		}
		w.end(c.Alignment)
	}
	return n
}

// naiveShards walks slots of the geometry slots and gives each rank its part.
// rank is what one rank holds; a replica is laid out once.
func naiveShards(slots, rank Config, ranks uint64, mode Parallelism) []*naive {
	all := make([]*naive, ranks)
	for i := range all {
		all[i] = &naive{}
	}
	var bytes naive
	w := newWalker(&bytes)
	for b := range slots.NumBlocks {
		w.align(slots.Alignment)
		for i := range all {
			if mode == Replicated && i > 0 {
				all[i] = all[0]
				continue
			}
			if b == 0 {
				newWalker(all[i])
			}
			for l := range rank.NumLayers {
				for o := range rank.OuterDim {
					w.put(index{b, l, o}, naiveRegion(rank))
					all[i].places[index{b, l, o}] = bytes.places[index{b, l, o}]
				}
			}
		}
	}
	for _, n := range all {
		n.ends[0] = bytes.ends[0]
	}
	return all
}

// twins is a layout and its naive twin.
type twins struct {
	Layout
	naive *naive
	name  string
	align uint64 // of the storage, which for a shard is that of the slots
}

func drawGeometry(t *rapid.T) Config {
	return Config{
		NumLayers:  rapid.Uint64Range(1, 4).Draw(t, "layers"),
		OuterDim:   rapid.Uint64Range(1, 2).Draw(t, "outer"),
		PageSize:   rapid.Uint64Range(1, 5).Draw(t, "page"),
		InnerDim:   rapid.Uint64Range(1, 7).Draw(t, "inner"),
		DTypeBytes: rapid.Uint64Range(1, 8).Draw(t, "dtype"),
	}
}

// drawLayout draws a layout of any kind for blocks of the geometry c.
func drawLayout(t *rapid.T, c Config, label string) twins {
	c.NumBlocks = rapid.Uint64Range(1, 5).Draw(t, label+" blocks")
	c.Alignment = rapid.SampledFrom([]uint64{0, 1, 2, 16, 64, 512}).Draw(t, label+" alignment")
	kind := rapid.SampledFrom([]string{"contiguous", "block first", "outer first", "sharded", "replicated"}).Draw(t, label)
	switch kind {
	case "contiguous":
		return twins{must(NewFullyContiguous(c))(t), naiveContiguous(c), kind, max(c.Alignment, 1)}
	case "block first":
		return twins{must(NewLayerSeparate(c, BlockFirst))(t), naiveSeparate(c, BlockFirst), kind, max(c.Alignment, 1)}
	case "outer first":
		return twins{must(NewLayerSeparate(c, OuterFirst))(t), naiveSeparate(c, OuterFirst), kind, max(c.Alignment, 1)}
	}
	ranks := rapid.Uint64Range(1, 4).Draw(t, label+" ranks")
	rank := rapid.Uint64Range(0, ranks-1).Draw(t, label+" rank")
	slots, mode := c, Replicated
	if kind == "sharded" {
		slots.InnerDim, mode = c.InnerDim*ranks, LeaderWorkerSharded
	}
	s := must(NewSharding(must(NewFullyContiguous(slots))(t), ranks, mode))(t)
	return twins{must(s.Shard(rank))(t), naiveShards(slots, c, ranks, mode)[rank], fmt.Sprintf("%s %d of %d", kind, rank, ranks), max(c.Alignment, 1)}
}

// must lets a constructor stand inside an expression: must(New(c))(t).
func must[T any](v T, err error) func(interface{ Fatal(...any) }) T {
	return func(t interface{ Fatal(...any) }) T {
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (w twins) indices() []index {
	var all []index
	c := w.Config()
	for b := range c.NumBlocks {
		for l := range c.NumLayers {
			for o := range c.OuterDim {
				all = append(all, index{b, l, o})
			}
		}
	}
	return all
}

func TestEveryLayoutAgreesWithTheNaiveWalkAndNothingOverlaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawLayout(t, drawGeometry(t), "layout")
		var all []Place
		for _, i := range w.indices() {
			p, err := w.Place(i.block, i.layer, i.outer)
			if err != nil {
				t.Fatal(err)
			}
			if want := w.naive.places[i]; p != want {
				t.Fatalf("%s: region %v is %v, want %v", w.name, i, p, want)
			}
			all = append(all, p)
		}
		slices.SortFunc(all, func(a, b Place) int {
			if a.Storage != b.Storage {
				return a.Storage - b.Storage
			}
			return int(a.Offset) - int(b.Offset)
		})
		var bytes uint64
		for i, p := range all {
			bytes += p.Size
			if p.Storage >= w.Storages() || p.End() > w.DataBytes() {
				t.Fatalf("%s: region %v is outside %d storages of %d bytes", w.name, p, w.Storages(), w.DataBytes())
			}
			if i > 0 && all[i-1].Storage == p.Storage && all[i-1].End() > p.Offset {
				t.Fatalf("%s: regions %v and %v overlap", w.name, all[i-1], p)
			}
		}
		if want := w.Config().NumBlocks * w.BlockBytes(); bytes != want {
			t.Fatalf("%s: regions have %d bytes, blocks %d", w.name, bytes, want)
		}
		if len(w.naive.ends) != w.Storages() {
			t.Fatalf("%s: %d storages, want %d", w.name, w.Storages(), len(w.naive.ends))
		}
		for i, end := range w.naive.ends {
			if end != w.DataBytes() {
				t.Fatalf("%s: storage %d has %d bytes, want %d", w.name, i, w.DataBytes(), end)
			}
		}
	})
}

func TestAlignmentIsHonouredAtAnyBase(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawLayout(t, drawGeometry(t), "layout")
		addr := rapid.Uint64Range(0, 1<<40).Draw(t, "address")
		a := max(w.Config().Alignment, 1)
		base := addr + w.BaseOffset(addr)
		if base < addr || base+w.DataBytes() > addr+w.TotalBytes() {
			t.Fatalf("%s: base %d with %d bytes leaves [%d, %d)", w.name, base, w.DataBytes(), addr, addr+w.TotalBytes())
		}
		first := addr
		for first%w.align != 0 {
			first++
		}
		if base != first {
			t.Fatalf("%s: base of address %d is %d, want the first aligned one, %d", w.name, addr, base, first)
		}
		// The worst base wastes all but one byte of an alignment.
		if worst := w.align + 1; w.BaseOffset(worst)+w.DataBytes() != w.TotalBytes() {
			t.Fatalf("%s: %d bytes in all, want %d of data and %d to align", w.name, w.TotalBytes(), w.DataBytes(), w.BaseOffset(worst))
		}
		ls, separate := w.Layout.(LayerSeparate)
		for _, i := range w.indices() {
			starts := i.layer == 0 && i.outer == 0 // of a block
			if separate {
				starts = i.outer == 0 || ls.Order() == OuterFirst // of a block in a layer
			}
			p, err := w.Place(i.block, i.layer, i.outer)
			if err != nil {
				t.Fatal(err)
			}
			if starts && (base+p.Offset)%a != 0 {
				t.Fatalf("%s: %v lies at %d: alignment %d not honoured", w.name, i, base+p.Offset, a)
			}
		}
	})
}
