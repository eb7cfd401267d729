package residency_test

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// printer is a Sink that prints events.
type printer struct{}

func (*printer) Publish(events []kvevent.RouterEvent) {
	for _, e := range events {
		fmt.Printf("event %d: %s, %d blocks in %s\n", e.ID, e.Kind, e.NumBlocks(), e.Tier)
	}
}

// Two holders store a block. The stream removes the block with its last reference.
func ExampleStream() {
	s := residency.NewStream(kv.PoolOwner(1), &printer{})
	blocks := []kvevent.StoredBlock{{Hash: 11, Local: 1}, {Hash: 12, Local: 2}}
	s.Store(kv.TierHost, 0, false, 0, blocks)
	s.Store(kv.TierHost, 0, false, 0, blocks[:1]) // a second reference
	s.Flush()
	s.Remove(kv.TierHost, []kv.SequenceHash{11, 12})
	s.Flush()
	fmt.Println("blocks left:", s.Status().Blocks)
	s.Remove(kv.TierHost, []kv.SequenceHash{11})
	s.Flush()
	// Output:
	// event 1: stored, 2 blocks in host_pinned
	// event 2: removed, 1 blocks in host_pinned
	// blocks left: 1
	// event 3: removed, 1 blocks in host_pinned
}

// A worker can reach its own block and that of its pool.
func ExampleMerged() {
	worker := kv.Worker{ID: 7}
	own, pool := residency.NewStream(kv.WorkerOwner(worker), nil), residency.NewStream(kv.PoolOwner(1), nil)
	pool.Store(kv.TierHost, 0, false, 0, []kvevent.StoredBlock{{Hash: 11, Local: 1}})

	merged := residency.NewMerged(worker, residency.MergeTiered, nil)
	defer merged.Close()
	if err := own.AddSink(merged.Own()); err != nil {
		panic(err)
	}
	if err := merged.FollowPool(pool); err != nil {
		panic(err)
	}
	own.Store(kv.TierDevice, 11, true, 1, []kvevent.StoredBlock{{Hash: 12, Local: 2}})
	own.Flush()
	<-merged.Joined()
	events, _, _ := merged.Snapshot()
	for _, e := range events {
		fmt.Println(e.Owner, "has", e.Blocks[0].Hash, "in", e.Tier)
	}
	// Output:
	// worker 7/0 has 11 in host_pinned
	// worker 7/0 has 12 in device
}
