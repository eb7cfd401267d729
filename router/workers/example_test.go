package workers_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/blockyard-ai/blockyard/router/workers"
)

// A server is named, asked for its models, and found by one of them.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"data":[{"id":"tiny","owned_by":"vllm","max_model_len":4096}]}`)
		}
	}))
	defer server.Close()
	spec, err := workers.ParseSpec(server.URL + ",id=7,block-size=16")
	if err != nil {
		log.Fatal(err)
	}
	d, err := workers.New(workers.Options{Specs: []workers.Spec{spec}})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	for {
		changed := d.Changed()
		if w, _ := d.Worker(7); w.State == workers.Ready {
			break
		}
		<-changed
	}
	served, err := d.Resolve("tiny")
	fmt.Println(served.Model, served.MaxLen, err)
	cancel()
	fmt.Println(<-ended)
	// Output:
	// tiny 4096 <nil>
	// <nil>
}
