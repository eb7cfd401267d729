package storage_test

import (
	"fmt"
	"os"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr/storage"
	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// A block is stored on disk and found again by the next agent.
func Example() {
	dir, err := os.MkdirTemp("", "arena-")
	check(err)
	defer os.RemoveAll(dir)
	cfg := storage.ArenaConfig{Dir: dir, Bytes: 1 << 20, Log: zap.NewNop()}
	const slotBytes = 2 * storage.PageSize
	key := kv.BlockKey{1}.InGroup(0)

	arena, err := storage.OpenDiskArena(cfg)
	check(err)
	ns, err := arena.Namespace(kv.NamespaceID{1}, slotBytes)
	check(err)
	opened, err := arena.Grow(ns, slotBytes, 1, 0)
	check(err)
	slot := extent.AlignedBytes(slotBytes)
	copy(slot, "keys and values")
	check(opened.Extent.WriteSlot(3, slot, extent.Life{}))
	opened.Slots.Put(3, &storage.Record{
		Key: key, Namespace: ns, Length: slotBytes, State: storage.StateSealed, Generation: 1,
		Checksum: storage.Bind(extent.ContentSum(key, slot), key, 1),
	})
	check(storage.WritePages(opened.Slots.TakeDirty(nil)))
	check(arena.Close([]storage.DiskExtent{opened}))

	arena, err = storage.OpenDiskArena(cfg)
	check(err)
	ns, err = arena.Namespace(kv.NamespaceID{1}, slotBytes)
	check(err)
	for opened := range arena.Claim(ns) {
		r, err := opened.Slots.Get(3)
		check(err)
		check(opened.Extent.ReadSlot(3, slot, extent.Life{}))
		whole := storage.Bind(extent.ContentSum(r.Key, slot), r.Key, r.Generation) == r.Checksum
		fmt.Printf("%s %q whole=%v\n", r.State, slot[:15], whole)
		check(arena.Close([]storage.DiskExtent{opened}))
	}
	// Output: sealed "keys and values" whole=true
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
