package indexer_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api/indexer"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// A client of Dynamo's indexer asks which workers hold a prompt.
func Example() {
	transport := sourcetest.NewTransport()
	r, err := router.New(router.Options{}, transport)
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	worker := transport.Publisher(1, sourcetest.WorkerOwner(7), 0)
	transport.Send(worker.Announce(), worker.Store(kv.TierDevice, sourcetest.Tokens(1)), worker.Announce())
	server := httptest.NewServer(indexer.New(indexer.Options{Router: r}).Handler())
	body := `{"model_name":"m","token_ids":` + routertest.TokensJSON(sourcetest.Tokens(1)) + `}`
	response, err := server.Client().Post(server.URL+"/query", "application/json", strings.NewReader(body))
	check(err)
	text, err := io.ReadAll(response.Body)
	check(err)
	check(response.Body.Close())
	fmt.Print(string(text))
	server.Close()
	stop()
	check(<-ended)
	// Output:
	// {"scores":{"7":{"0":4}},"frequencies":[],"instances":{"7":{"longest_matched":4,"gpu":4,"dp":{"0":4},"cpu":4,"disk":4}}}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
