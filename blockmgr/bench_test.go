package blockmgr

import (
	"context"
	"testing"
)

// benchPool is a pool of 4096 host slots that holds the chains 1 to 3 of 1000 blocks.
func benchPool(b *testing.B) *testPool {
	p := openTestPool(b, Config{HostDir: b.TempDir(), HostBytes: hostBytes(4096), ScrubBytesPerSecond: -1})
	b.Cleanup(p.finish)
	for seed := range uint64(3) {
		for stored := 0; stored < 1000; p.quiesce() {
			stored += p.store(chain(seed+1, 1000))
		}
	}
	return p
}

// BenchmarkLookup finds, pins and unpins a prompt of 1000 blocks in host memory.
func BenchmarkLookup(b *testing.B) {
	p, blocks := benchPool(b), chain(1, 1000)
	b.ReportAllocs()
	for b.Loop() {
		res, err := p.Lookup(context.Background(), p.sid, blocks)
		if err != nil || len(res.Slots) != len(blocks) || p.Unpin(p.sid, res.Slots) != nil {
			b.Fatal(len(res.Slots), err)
		}
	}
}

// BenchmarkGrantPresent offers 1000 blocks that are stored.
func BenchmarkGrantPresent(b *testing.B) {
	p, blocks := benchPool(b), chain(1, 1000)
	b.ReportAllocs()
	for b.Loop() {
		if res, err := p.Grant(p.sid, blocks, 0); err != nil || res.Present != len(blocks) {
			b.Fatal(res.Present, err)
		}
	}
}

// BenchmarkGrantAbort grants 1000 slots for new blocks and gives them back.
func BenchmarkGrantAbort(b *testing.B) {
	p, blocks, slots := benchPool(b), chain(9, 1000), make([]Slot, 0, 1000)
	b.ReportAllocs()
	for b.Loop() {
		res, err := p.Grant(p.sid, blocks, 0)
		if err != nil || len(res.Grants) != len(blocks) {
			b.Fatal(len(res.Grants), err)
		}
		slots = slots[:0]
		for _, g := range res.Grants {
			slots = append(slots, g.Slot)
		}
		if err := p.Abort(p.sid, slots); err != nil {
			b.Fatal(err)
		}
	}
}
