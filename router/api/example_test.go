package api_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// A client asks over HTTP where to send a prompt.
func Example() {
	transport := sourcetest.NewTransport()
	r, err := router.New(router.Options{}, transport)
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	worker := transport.Publisher(1, sourcetest.WorkerOwner(7), 0)
	transport.Send(worker.Announce(), worker.Store(kv.TierDevice, sourcetest.Tokens(1, 2)), worker.Announce())

	server := httptest.NewServer(api.New(r, api.Options{}).Handler())
	body := routertest.NewBody("", 1, 2, 3) // {"method":"new","tokens":[…]}
	response, err := server.Client().Post(server.URL+"/v1/route", "application/json", strings.NewReader(body))
	check(err)
	text, err := io.ReadAll(response.Body)
	check(err)
	check(response.Body.Close())
	fmt.Println(response.Status)
	fmt.Println(string(text))
	server.Close()
	stop()
	check(<-ended)
	// Output:
	// 200 OK
	// {"method":"new","worker_id":7,"dp_rank":0,"overlap_blocks":2}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
