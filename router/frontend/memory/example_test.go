package memory_test

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/frontend/memory"
)

// A request with which two workers died is not sent to a third one.
func Example() {
	deaths, now := memory.NewDeaths(), time.Now()
	request := memory.FingerprintOf("/v1/completions", []byte(`{"prompt": "x"}`))
	fmt.Println(deaths.Add(request, kv.Worker{ID: 1}, now), deaths.Fatal(request, now))
	fmt.Println(deaths.Add(request, kv.Worker{ID: 2}, now), deaths.Fatal(request, now))
	// Output:
	// 1 false
	// 2 true
}
