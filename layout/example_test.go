package layout_test

import (
	"fmt"
	"log"

	"github.com/blockyard-ai/blockyard/layout"
)

// A slot of 16 tokens is divided between two tensor-parallel ranks.
func Example() {
	slot, err := layout.NewFullyContiguous(layout.Config{
		NumBlocks: 1, NumLayers: 32, OuterDim: 2, PageSize: 16, InnerDim: 1024, DTypeBytes: 2,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("block:", slot.BlockBytes(), "bytes")
	ranks, err := layout.NewSharding(slot, 2, layout.LeaderWorkerSharded)
	if err != nil {
		log.Fatal(err)
	}
	for rank := range ranks.Ranks() {
		part, err := ranks.Shard(rank)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("rank %d: %d bytes at %d\n", rank, part.Size, part.Offset)
	}
	// Output:
	// block: 2097152 bytes
	// rank 0: 1048576 bytes at 0
	// rank 1: 1048576 bytes at 1048576
}
