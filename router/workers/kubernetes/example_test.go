package kubernetes_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/blockyard-ai/blockyard/router/workers"
	"github.com/blockyard-ai/blockyard/router/workers/kubernetes"
)

// The endpoints of a Service become servers.
func Example() {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprint(w, `{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"llama-x"},"addressType":"IPv4",
				"endpoints":[{"addresses":["192.0.2.1"],"conditions":{"ready":true}},{"addresses":["192.0.2.2"],"conditions":{"ready":false}}],
				"ports":[{"name":"http","port":8000}]}]}`)
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer api.Close()
	finder, err := kubernetes.Parse("models/llama:http,role=decode", kubernetes.Cluster{URL: api.URL})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	err = finder.Run(ctx, func(all []workers.Found) {
		for _, f := range all {
			fmt.Println(f.URL, f.Role, "leaving:", f.Leaving)
		}
		cancel()
	})
	fmt.Println(err)
	// Output:
	// http://192.0.2.1:8000 decode leaving: false
	// http://192.0.2.2:8000 decode leaving: true
	// <nil>
}
