package router_test

import (
	"context"
	"fmt"
	"log"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// Worker 2 publishes that it has three blocks of a prompt, and gets the request. The transport
// of a real router is one of package source, such as source/nats.
func Example() {
	transport := sourcetest.NewTransport()
	r, err := router.New(router.Options{}, transport)
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()

	tokens := sourcetest.Tokens(1, 2, 3)
	idle := transport.Publisher(1, sourcetest.WorkerOwner(1), 0)
	warm := transport.Publisher(2, sourcetest.WorkerOwner(2), 0)
	transport.Send(idle.Announce(), warm.Announce(), warm.Store(kv.TierDevice, tokens))
	transport.Send(warm.Announce()) // the router takes a frame once the one before is applied

	m, err := r.FindBestMatch(ctx, &router.Request{ID: "r1", Tokens: tokens, UpdateStates: true})
	check(err)
	fmt.Printf("worker %s has %d blocks, quality %s\n", m.Worker, m.OverlapBlocks(), m.Quality)
	check(r.MarkPrefillCompleted("", "r1")) // at the first token
	r.Free("", "r1")                        // at the end
	stop()
	check(<-ended)
	// Output:
	// worker 2/0 has 3 blocks, quality exact
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
