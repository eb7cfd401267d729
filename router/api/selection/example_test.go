package selection_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api/selection"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// A client of Dynamo's selection service asks for the worker of a prompt.
func Example() {
	transport := sourcetest.NewTransport()
	r, err := router.New(router.Options{}, transport)
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	worker := transport.Publisher(1, sourcetest.WorkerOwner(7), 0)
	transport.Send(worker.Announce(), worker.Store(kv.TierDevice, sourcetest.Tokens(1)), worker.Announce())
	server := httptest.NewServer(selection.New(selection.Options{Router: r}).Handler())
	body := `{"selection_id":"a","model_name":"m","token_ids":` + routertest.TokensJSON(sourcetest.Tokens(1, 2)) + `}`
	response, err := server.Client().Post(server.URL+"/select_and_reserve", "application/json", strings.NewReader(body))
	check(err)
	text, err := io.ReadAll(response.Body)
	check(err)
	check(response.Body.Close())
	fmt.Print(string(text))
	server.Close()
	stop()
	check(<-ended)
	// Output:
	// {"selection_id":"a","sequence_hashes":[6320977984009303047,7938730344477850460],"isl_tokens":8,"track_prefill_tokens":true,"model_name":"m","routing_group":"default","worker_id":7,"dp_rank":0,"endpoint":"","block_size":4,"overlap":{"longest_matched":4,"gpu":4,"dp":{"0":4},"cpu":4,"disk":4},"effective_prefill_tokens":4,"potential_decode_blocks":2}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
