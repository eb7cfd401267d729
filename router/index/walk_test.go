package index_test

import (
	"runtime"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// TestWalkTakesLittleMemory: a walk over an index allocates the same few buffers
// whatever its size, and its visitor may write to the index meanwhile.
func TestWalkTakesLittleMemory(t *testing.T) {
	x, err := index.New(index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const prompts, each = 512, 200
	e := kvevent.RouterEvent{Kind: kvevent.Stored, Owner: kv.WorkerOwner(kv.Worker{ID: 1}), Tier: kv.TierDevice}
	for p := range prompts {
		locals := make([]kv.LocalHash, each)
		for i := range locals {
			locals[i] = kv.LocalHash(p*each + i + 1)
		}
		e.Blocks = e.Blocks[:0]
		for i, h := range kv.AppendSequence(nil, locals) {
			e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: h, Local: locals[i]})
		}
		if err := x.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	extra := kvevent.RouterEvent{Kind: kvevent.Stored, Owner: kv.PoolOwner(9), Tier: kv.TierHost, Blocks: []kvevent.StoredBlock{{Hash: 1, Local: 1}}}
	walk := func() (blocks int) {
		x.Walk(func(e *kvevent.RouterEvent) bool {
			if e.Owner.Kind == kv.OwnerWorker {
				blocks += len(e.Blocks)
			}
			if err := x.Apply(&extra); err != nil {
				t.Fatal(err)
			}
			return true
		})
		return blocks
	}
	if n := walk(); n != prompts*each {
		t.Errorf("%d blocks, want %d", n, prompts*each)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	walk()
	runtime.ReadMemStats(&after)
	if got, most := after.TotalAlloc-before.TotalAlloc, uint64(256<<10); got > most {
		t.Errorf("a walk over %d bytes of index allocates %d bytes, want at most %d", x.Stats().Bytes, got, most)
	}
}

// TestWalkEndsWhenTheVisitorSaysSo: nothing is shown behind the event at which the
// visitor returned false, and ids count from 0.
func TestWalkEndsWhenTheVisitorSaysSo(t *testing.T) {
	x, err := index.New(index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		h := kv.LocalHash(i + 1)
		e := kvevent.RouterEvent{Kind: kvevent.Stored, Owner: kv.PoolOwner(1), Tier: kv.TierHost,
			Blocks: []kvevent.StoredBlock{{Hash: kv.AppendSequence(nil, []kv.LocalHash{h})[0], Local: h}}}
		if err := x.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	var ids []uint64
	x.Walk(func(e *kvevent.RouterEvent) bool { ids = append(ids, e.ID); return len(ids) < 3 })
	if !slices.Equal(ids, []uint64{0, 1, 2}) {
		t.Errorf("ids %v", ids)
	}
}
