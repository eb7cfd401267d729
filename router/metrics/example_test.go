package metrics_test

import (
	"fmt"
	"net/http/httptest"
	"strings"

	"github.com/blockyard-ai/blockyard/router/metrics"
)

func Example() {
	type stats struct {
		Waiting int `metric:"waiting" help:"Requests that wait."`
	}
	m := metrics.New("v1.2.3")
	metrics.AddStats(m, "example_", func() stats { return stats{Waiting: 2} })
	m.Door.Answered("completions", "llama", 200)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "example_") || strings.HasPrefix(line, "blockyard_frontend_requests_total") {
			fmt.Print(line)
		}
	}
	// Output:
	// blockyard_frontend_requests_total{model="llama",route="completions",status="200"} 1
	// example_waiting 2
}
