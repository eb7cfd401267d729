package schedule_test

import (
	"context"
	"fmt"
	"log"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// The request goes to the worker that has most of the prompt. The next one sees the load of
// the first, and goes to the other worker.
func Example() {
	s, err := schedule.New(schedule.Options{Config: schedule.DefaultConfig()})
	check(err)
	members := &index.Members{List: []index.Member{{Worker: kv.Worker{ID: 1}}, {Worker: kv.Worker{ID: 2}}}}
	for _, id := range []string{"r1", "r2"} {
		result, err := s.Schedule(context.Background(), &schedule.Request{
			ID: id, Book: true, Tokens: 900, BlockSize: 16, TrackPrefill: true, Members: members,
			Hits: []index.Hit{{Member: 1, Hits: index.Hits{kv.TierDevice: 10}}}, // worker 2 has 10 blocks
		})
		check(err)
		fmt.Printf("%s: worker %s, %d cached tokens, cost %.2f blocks\n", id, result.Worker, result.CachedTokens, result.Cost)
	}
	check(s.MarkPrefillCompleted("r1")) // at the first token
	s.Free("r1")                        // at the end
	// Output:
	// r1: worker 2/0, 160 cached tokens, cost 46.25 blocks
	// r2: worker 1/0, 0 cached tokens, cost 56.25 blocks
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
