package source_test

import (
	"fmt"
	"log"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// A Transport puts the chunks of a publisher's answer together.
func ExampleAssembly() {
	const publisher = 5
	assembly := source.NewAssembly(publisher, &kvevent.QueryRequest{StartID: 1, HasStart: true})
	for chunk := range uint32(2) {
		done, err := assembly.Add(&kvevent.QueryReply{
			PublisherID: publisher, Kind: kvevent.QueryEvents, LastEventID: 2, Chunk: chunk, Final: chunk == 1,
			Events: []kvevent.RouterEvent{{
				Owner: kv.PoolOwner(1), Tier: kv.TierHost, ID: uint64(chunk) + 1, Kind: kvevent.Removed, Removed: []kv.SequenceHash{11},
			}},
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("chunk", chunk, "done:", done)
	}
	answer := assembly.Answer()
	fmt.Println(len(answer.Events), "events up to", answer.LastEventID)
	// Output:
	// chunk 0 done: false
	// chunk 1 done: true
	// 2 events up to 2
}
