package spans_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/frontend/spans"
	"github.com/blockyard-ai/blockyard/router/frontend/spans/spanstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a Tracer with some variables and no others.
func open(t *testing.T, variables map[string]string) (*spans.Tracer, error) {
	t.Helper()
	for _, name := range []string{"OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
		"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_TRACES_SAMPLER", "OTEL_SERVICE_NAME"} {
		t.Setenv(name, variables[name])
	}
	return spans.Open(zap.NewNop())
}

// The standard variables turn tracing on and off. What is not supported is an error that names
// the variable.
func TestVariables(t *testing.T) {
	const endpoint = "http://127.0.0.1:1"
	for name, c := range map[string]struct {
		variables map[string]string
		on        bool
		err       string
	}{
		"none":               {},
		"an endpoint":        {variables: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}, on: true},
		"one for traces":     {variables: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint}, on: true},
		"the exporter":       {variables: map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, on: true},
		"no exporter":        {variables: map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}},
		"disabled":           {variables: map[string]string{"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}},
		"another exporter":   {variables: map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, err: "OTEL_TRACES_EXPORTER"},
		"another protocol":   {variables: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, err: "OTEL_EXPORTER_OTLP_PROTOCOL"},
		"protocol of traces": {variables: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, on: true},
	} {
		t.Run(name, func(t *testing.T) {
			tracer, err := open(t, c.variables)
			if (tracer != nil) != c.on || (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err+":") {
				t.Errorf("tracer %v, error %v", tracer, err)
			}
			if err := tracer.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Spans that the collector refuses are counted.
func TestRefusedSpansAreCounted(t *testing.T) {
	c := spanstest.New()
	defer c.Close()
	c.Refuse(http.StatusBadRequest)
	tracer, err := open(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_SERVICE_NAME": "mine"})
	if err != nil {
		t.Fatal(err)
	}
	_, s := tracer.Begin(context.Background(), "x", nil, time.Now())
	s.End(errors.New("it failed"))
	if err := tracer.Close(); err != nil {
		t.Error(err)
	}
	if got, want := tracer.Stats(), (spans.Stats{Ended: 1, Failed: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A nil Tracer leaves the client's headers alone and allocates nothing.
func TestOffIsFree(t *testing.T) {
	var tracer *spans.Tracer
	h := http.Header{"Traceparent": {"x"}}
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() { off(ctx, tracer, h) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
	if h.Get("Traceparent") != "x" || tracer.Stats() != (spans.Stats{}) {
		t.Errorf("headers %v, stats %+v", h, tracer.Stats())
	}
}

// off is what a request does with its spans.
func off(ctx context.Context, tracer *spans.Tracer, h http.Header) {
	ctx, request := tracer.Begin(ctx, "POST /v1/completions", h, time.Time{})
	for _, name := range []string{"tokens", "admission", "decision"} {
		_, part := tracer.Start(ctx, name)
		part.End(nil)
	}
	ctx, call := tracer.StartCall(ctx, "upstream")
	tracer.Propagate(ctx, h)
	call.Text("a", "b")
	call.End(nil)
	request.Number("c", 1)
	request.Fail("d")
	request.End(nil)
}

func BenchmarkOff(b *testing.B) {
	var tracer *spans.Tracer
	ctx, h := context.Background(), http.Header{}
	b.ReportAllocs()
	for b.Loop() {
		off(ctx, tracer, h)
	}
}

func BenchmarkOn(b *testing.B) {
	c := spanstest.New()
	defer c.Close()
	b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	tracer, err := spans.Open(zap.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	ctx, h := context.Background(), http.Header{}
	b.ReportAllocs()
	for b.Loop() {
		off(ctx, tracer, h)
	}
	b.StopTimer()
	if err := tracer.Close(); err != nil {
		b.Error(err)
	}
}
