package policy

import (
	"math/rand/v2"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

const benchLeaves = 10_000_000

// benchRef is slot i of a tier of full parts.
func benchRef(i uint32) registry.Ref {
	return registry.MakeRef(i>>registry.RefSlotBits, i&(1<<registry.RefSlotBits-1))
}

// benchLRU is an order of benchLeaves slots in which every tick is as likely
// anywhere.
func benchLRU(b *testing.B) *LeafLRU {
	l, ticks := NewLeafLRU(), rand.New(rand.NewPCG(1, 2))
	for i := range uint32(benchLeaves) {
		if i&(1<<registry.RefSlotBits-1) == 0 {
			l.AddExtent(i>>registry.RefSlotBits, 1<<registry.RefSlotBits)
		}
		l.Place(benchRef(i), 0, ticks.Uint64N(benchLeaves))
	}
	b.ReportAllocs()
	return l
}

// BenchmarkLeafLRUEvict evicts the oldest of 10 million leaves and enters its slot
// again as the newest: what a full tier does for each block.
func BenchmarkLeafLRUEvict(b *testing.B) {
	l, tick := benchLRU(b), uint64(benchLeaves)
	for b.Loop() {
		ref, _ := l.Victim()
		l.Remove(ref)
		tick++
		l.Place(ref, 0, tick)
	}
}

// BenchmarkLeafLRUTouch makes any of 10 million leaves the newest.
func BenchmarkLeafLRUTouch(b *testing.B) {
	l, tick, refs := benchLRU(b), uint64(benchLeaves), rand.New(rand.NewPCG(3, 4))
	for b.Loop() {
		tick++
		l.Place(benchRef(refs.Uint32N(benchLeaves)), 0, tick)
	}
}

// BenchmarkLeafLRUPin takes any of 10 million leaves out and puts it back where it
// was newest: what a lookup and the end of its pin do.
func BenchmarkLeafLRUPin(b *testing.B) {
	l, tick, refs := benchLRU(b), uint64(benchLeaves), rand.New(rand.NewPCG(3, 4))
	for b.Loop() {
		ref := benchRef(refs.Uint32N(benchLeaves))
		l.Remove(ref)
		tick++
		l.Place(ref, 0, tick)
	}
}

// BenchmarkFrequencyFilter asks for blocks of a filter with a million entries: a
// half that it knows, and a half that is new and now and then one too many.
func BenchmarkFrequencyFilter(b *testing.B) {
	f, err := NewFrequencyFilter(FrequencyOptions{})
	if err != nil {
		b.Fatal(err)
	}
	known := kv.SequenceHash(f.options.MaxEntries / 2)
	for h := range known {
		f.ShouldOffload(h)
		f.ShouldOffload(h)
	}
	hashes, fresh := rand.New(rand.NewPCG(5, 6)), known
	b.ReportAllocs()
	for b.Loop() {
		f.ShouldOffload(kv.SequenceHash(hashes.Uint64N(uint64(known))))
		f.ShouldOffload(fresh)
		fresh++
	}
}
