package price_test

import (
	"testing"

	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// TestTotal: each objective adds its parts. A wait is a part of the time to the first token, and counts
// WaitWeight times in all.
func TestTotal(t *testing.T) {
	p := price.Price{Wait: 10, TTFT: 100, Decode: 1000, Machine: 10_000, Imposed: 100_000}
	for objective, want := range map[price.Objective]float64{
		price.Balanced:   100 + (price.WaitWeight-1)*10 + 1000 + 100_000,
		price.TTFT:       100 + (price.WaitWeight-1)*10 + 100_000,
		price.Throughput: 10_000 + 100_000,
	} {
		if got := p.Total(objective); got != want {
			t.Errorf("%s: %v, want %v", objective, got, want)
		}
	}
	idle, busy := price.Price{TTFT: 500}, price.Price{TTFT: 400, Wait: 200}
	if idle.Total(price.Balanced) > busy.Total(price.Balanced) {
		t.Error("a certain 500 ms cost more than 400 ms of which 200 are a wait")
	}
}
