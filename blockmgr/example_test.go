package blockmgr_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// An engine stores two blocks of a prompt. The next request finds both.
func Example() {
	dir, err := os.MkdirTemp("", "blockmgr")
	check(err)
	defer os.RemoveAll(dir)
	m, err := blockmgr.Open(blockmgr.Config{HostDir: dir, HostBytes: 1 << 20})
	check(err)
	pool, err := m.Pool(kv.Namespace{
		Model: "tiny", Weights: "w0", DType: "bfloat16", KVFormat: "example", Layout: "fully_contiguous",
		Layers: 2, OuterDim: 2, BlockSize: 4, InnerDim: 64, DTypeBytes: 2, TP: 1, PP: 1, DCP: 1,
	})
	check(err)
	const session = 1
	check(pool.BeginSession(session))

	id := blockmgr.NewIdentifier()
	first := id.First(id.Root(pool.NamespaceID(), "", "", ""), []uint32{1, 2, 3, 4})
	blocks := []blockmgr.Block{first, id.Next(&first, []uint32{5, 6, 7, 8})}
	granted, err := pool.Grant(session, blocks, 0)
	check(err)
	var slots []blockmgr.Slot
	for _, g := range granted.Grants {
		fill(pool, g.Slot, fmt.Sprintf("keys and values %d", g.Index))
		slots = append(slots, g.Slot)
	}
	check(pool.Commit(session, slots))

	found, err := pool.Lookup(context.Background(), session, blocks)
	check(err)
	fmt.Println(len(found.Slots), "blocks in", found.Sources)
	check(pool.Unpin(session, found.Slots))
	check(m.Close())
	// Output:
	// 2 blocks in [host_pinned host_pinned]
}

// fill writes to a slot as an engine does: through the file of the slot's extent.
func fill(pool *blockmgr.Pool, slot blockmgr.Slot, text string) {
	for _, e := range pool.Extents() {
		if e.ID == slot.Extent {
			_, err := e.File.WriteAt([]byte(text), int64(e.DataOffset+uint64(slot.Index)*e.SlotBytes))
			check(err)
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
