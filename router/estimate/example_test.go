package estimate_test

import (
	"fmt"
	"log"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// Measured prefills of different lengths tell how long the next one takes.
func Example() {
	now := time.Unix(0, 0)
	e, err := estimate.New(estimate.Options{Now: func() time.Time { return now }})
	if err != nil {
		log.Fatal(err)
	}
	worker := kv.Worker{ID: 7}
	e.SetWorker(worker, 0, "tiny")
	for _, tokens := range []int{1000, 4000, 500, 2000} {
		e.Booked(&estimate.Booking{ID: "r", Worker: worker, Tokens: tokens, BlockSize: 16}) // a request was sent
		now = now.Add(time.Duration(tokens) * 100 * time.Microsecond)
		e.PrefillDone("r") // its first token came
		e.Dropped("r")     // it has ended
		now = now.Add(time.Second)
	}
	members := &index.Members{List: []index.Member{{Worker: worker}}}
	prices := make([]price.Price, 1)
	why, ok := e.Prices(&schedule.Selection{
		Request: &schedule.Request{Tokens: 2000, BlockSize: 16, Members: members},
		Members: members,
		Loads:   &load.Columns{PrefillTokens: make([]int64, 1), ActiveBlocks: make([]int32, 1), Requests: make([]int32, 1)},
		Workers: make([]schedule.WorkerConfig, 1),
	}, prices)
	fmt.Printf("%.0f ms for 2000 tokens %v %s\n", prices[0].TTFT, ok, why)
	// Output:
	// 200 ms for 2000 tokens true
}
