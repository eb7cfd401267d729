package price_test

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// A busy worker brings the first token sooner, and costs its other requests more.
func Example() {
	prices := []price.Price{{TTFT: 50, Decode: 900, Imposed: 400}, {TTFT: 80, Decode: 800, Imposed: 20}}
	costs := []float64{prices[0].Total(price.Balanced), prices[1].Total(price.Balanced)}
	fmt.Println(costs, price.Pick(costs, prices, 1, func(k int) uint64 { return uint64(k) }))
	// Output: [1350 900] 1
}
