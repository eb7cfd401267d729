package registry_test

import (
	"fmt"
	"log"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

// A worker that has no publisher registers. The Source announces the worker.
func Example() {
	r, err := registry.New(registry.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	worker := registry.Registration{WorkerID: 7, Model: "tiny", BlockSize: 16, Endpoint: "http://127.0.0.1:8000"}
	if err := r.Register(&worker, time.Minute); err != nil {
		log.Fatal(err)
	}
	go r.Announce(7) // does not wait for the next second

	a, err := kvevent.DecodeAnnouncement((<-r.Frames()).Data)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.Owner, a.Model, a.Card.Endpoint, "silent:", a.Card.Silent, "source:", a.Card.Source)
	// Output:
	// worker 7/0 tiny http://127.0.0.1:8000 silent: true source: http
}
