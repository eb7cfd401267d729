package draw_test

import (
	"fmt"
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/router/schedule/draw"
)

// The lower a cost, the more often Draw chooses it.
func Example() {
	costs := []float64{1, 2, 3}
	random := rand.New(rand.NewPCG(1, 2))
	d := draw.NewSoftmax(costs, 0.25)
	var counts [3]int
	for range 1000 {
		counts[d.Draw(random)]++
	}
	fmt.Println(draw.Lowest(costs, nil), counts[0] > 10*counts[1]/2, counts[1] > counts[2])
	// Output: 0 true true
}
