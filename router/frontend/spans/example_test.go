package spans_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/frontend/spans"
	"github.com/blockyard-ai/blockyard/router/frontend/spans/spanstest"
)

func ExampleTracer() {
	collector := spanstest.New()
	defer collector.Close()
	if err := os.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL); err != nil {
		panic(err)
	}
	defer os.Unsetenv("OTEL_EXPORTER_OTLP_ENDPOINT") //nolint:errcheck // it was set above
	tracer, err := spans.Open(zap.NewNop())
	if err != nil {
		panic(err)
	}
	client := http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
	ctx, request := tracer.Begin(context.Background(), "POST /v1/completions", client, time.Now())
	_, decision := tracer.Start(ctx, "decision")
	decision.Text("blockyard.worker", "7/0")
	decision.End(nil)
	request.End(nil)
	if err := tracer.Close(); err != nil {
		panic(err)
	}
	for _, s := range collector.Spans() {
		fmt.Println(s.Service, s.Name, s.Trace, s.Attributes)
	}
	// Output:
	// blockyard-router decision 0af7651916cd43dd8448eb211c80319c map[blockyard.worker:7/0]
	// blockyard-router POST /v1/completions 0af7651916cd43dd8448eb211c80319c map[]
}
