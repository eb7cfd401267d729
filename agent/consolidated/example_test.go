package consolidated_test

import (
	"fmt"
	"log"

	"github.com/blockyard-ai/blockyard/agent/consolidated"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher/zmqsink"
)

// An Output publishes the blocks that a worker can reach: its own and those of its pool.
func ExampleOpen() {
	worker := kv.Worker{ID: 7}
	own, pool := residency.NewStream(kv.WorkerOwner(worker), nil), residency.NewStream(kv.PoolOwner(1), nil)
	pool.Store(kv.TierHost, 0, false, 0, []kvevent.StoredBlock{{Hash: 11, Local: 1}})

	out, err := consolidated.Open(zmqsink.Options{
		Bind: "tcp://127.0.0.1:*", ReplayBind: "tcp://127.0.0.1:*", Worker: worker, BlockSize: 16,
	}, proto.ConsolidatorTiered, tokens.New(1<<20))
	check(err)
	defer out.Close()
	check(out.Follow(own))
	check(out.FollowPool(pool))
	own.Store(kv.TierDevice, 11, true, 1, []kvevent.StoredBlock{{Hash: 12, Local: 2}})
	own.Flush()
	<-out.Merged.Joined()
	fmt.Println(out.Merged.Owner(), "reaches", out.Merged.Status().Blocks, "blocks")
	// Output:
	// worker 7/0 reaches 2 blocks
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
