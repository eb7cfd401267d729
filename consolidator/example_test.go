package consolidator_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/engine/zmqpub"
)

// events is a sink that passes copies of events on.
type events chan kvevent.RouterEvent

func (c events) Publish(all []kvevent.RouterEvent) {
	for _, e := range all {
		c <- e
	}
}

// A Rank follows an engine. A batch that was published before the Rank came is replayed.
func Example() {
	engine, err := zmqpub.New(zmqpub.Options{BufferSteps: 16})
	check(err)
	defer engine.Close()
	engine.Publish(engineevent.AppendBatch(nil, &engineevent.Batch{Events: []engineevent.Event{{
		Kind: kvevent.Stored, BlockHashes: []kv.EngineHash{901, 902}, Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8},
		BlockSize: 4, Group: engineevent.NoGroup,
	}}}))

	worker, sink := kv.Worker{ID: 7}, make(events, 16)
	stream := residency.NewStream(kv.WorkerOwner(worker), &sink)
	rank, err := consolidator.NewRank(consolidator.RankConfig{
		Worker: worker, BlockSize: 4, EventsEndpoint: engine.Events, ReplayEndpoint: engine.Replay,
		IdleProbe: time.Millisecond,
	}, stream)
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- rank.Run(ctx) }()

	e := <-sink
	fmt.Println(e.Owner, e.Kind, e.NumBlocks(), "blocks in", e.Tier)
	stop()
	check(<-ended)
	// Output:
	// worker 7/0 stored 2 blocks in device
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
