package kvbm_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/blockmgr/kvbm"
)

// A block goes through its four states. Two ranks share each slot, and the filter of the device
// layout is asked before a block is stored.
func Example_lifecycle() {
	dir, err := os.MkdirTemp("", "kvbm")
	check(err)
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(context.Background())
	m, err := kvbm.New(ctx, config.Config{
		Runtime:    config.Runtime{WorkerID: 1, NIXL: config.DisableNIXL()},
		Model:      config.Model{NumLayers: 2, OuterDim: 2, PageSize: 4, InnerDim: 64},
		HostLayout: &config.Layout{NumBlocks: 128, Logical: config.LeaderWorkerSharded},
	}, kvbm.Place{Model: "tiny", Weights: "w0", DType: "bfloat16", KVFormat: "example", TP: 2, HostDir: dir})
	check(err)
	session, err := m.Begin()
	check(err)
	blocks, err := m.Pool().Allocate(session, 2)
	check(err)
	first, second := blocks[0], blocks[1]
	first.SetPriority(5)
	fmt.Println(first.State(), first.Remaining())
	check(first.InitSequence(blockmgr.NewIdentifier().Root(m.Pool().NamespaceID(), "", "", "")))
	left, err := first.AddTokens([]uint32{1, 2, 3, 9})
	check(err)
	check(first.PopTokens(1))
	fmt.Println(first.State(), first.Tokens(), len(left), first.Remaining())
	_, err = first.AddTokens([]uint32{4})
	check(err)
	check(first.Commit())
	identity, _ := first.Block()
	fmt.Println(first.State(), m.ShouldStore(identity.Seq))
	check(second.InitAfter(identity))
	check(second.Reset())
	second.Release()

	for rank := range m.Sharding().Ranks() {
		part, err := m.Sharding().Shard(rank)
		check(err)
		fmt.Println("rank", rank, "stores:", m.Sharding().Stores(rank), part)
	}
	stored, err := m.Pool().Register(session, blocks[:1])
	check(err)
	fmt.Println(first.State(), stored[0].Valid(), stored[0].Block() == identity)
	stored[0].Release()
	cancel()
	<-m.Done()
	check(m.Close())
	// Output:
	// reset 0
	// partial [1 2 3] 0 1
	// complete true
	// rank 0 stores: true {0 2048}
	// rank 1 stores: true {2048 2048}
	// registered true true
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
