package load_test

import (
	"fmt"
	"log"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
)

// Two requests of a worker share a prompt block, which counts once.
func Example() {
	a, err := load.New(load.Options{})
	check(err)
	worker := kv.Worker{ID: 7}
	a.Align(&index.Members{List: []index.Member{{Worker: worker}}})
	check(a.Add(&load.Request{ID: "r1", Worker: worker, Sequence: []kv.SequenceHash{11, 12}, PrefillTokens: 900}))
	check(a.Add(&load.Request{ID: "r2", Worker: worker, Sequence: []kv.SequenceHash{11, 13}, PrefillTokens: 100}))
	show("booked", a.Columns())
	check(a.MarkPrefillCompleted("r1")) // at the first token
	show("first token", a.Columns())
	a.Free("r1") // at the end
	show("ended", a.Columns())
	// Output:
	// booked: 1000 prefill tokens, 3 blocks, 2 requests
	// first token: 100 prefill tokens, 3 blocks, 2 requests
	// ended: 100 prefill tokens, 2 blocks, 1 requests
}

func show(when string, c *load.Columns) {
	fmt.Printf("%s: %d prefill tokens, %d blocks, %d requests\n", when, c.PrefillTokens[0], c.ActiveBlocks[0], c.Requests[0])
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
