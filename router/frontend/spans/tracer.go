package spans

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

// closeTime bounds how long Close waits for the collector.
const closeTime = 5 * time.Second

// service is the name of the service without OTEL_SERVICE_NAME.
const service = "blockyard-router"

// Stats counts spans since Open. Those that are neither exported nor failed wait in the queue
// or were dropped from it.
type Stats struct {
	Ended    uint64 `metric:"spans_ended" help:"Spans of requests that ended and are to be exported."`
	Exported uint64 `metric:"spans_exported" help:"Spans that the OTLP collector took."`
	Failed   uint64 `metric:"spans_failed" help:"Spans that the OTLP collector did not take."`
}

// Tracer makes spans. A nil Tracer makes none.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	format   propagation.TraceContext
	counts   *counts
}

// counts is what Stats shows.
type counts struct{ ended, exported, failed atomic.Uint64 }

// wanted reports whether the variables ask for spans: an exporter, or an endpoint for one. The
// error names the variable whose value is not supported.
func wanted() (bool, error) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	endpoint := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	switch exporter := os.Getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return false, nil
	case "":
		if endpoint == "" {
			return false, nil
		}
	case "otlp":
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER: %.100q: want otlp or none", exporter)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := os.Getenv(name); protocol != "" {
			if protocol != "http/protobuf" {
				return false, fmt.Errorf("%s: %.100q: want http/protobuf", name, protocol)
			}
			break
		}
	}
	return true, nil
}

// Open returns the Tracer that the OTEL_* variables ask for, nil when they ask for none. The
// error names a variable with a value that is not supported.
func Open(log *zap.Logger) (*Tracer, error) {
	if on, err := wanted(); !on {
		return nil, err
	}
	ctx := context.Background()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("spans are not exported", zap.Error(err)) }))
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", service)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
	}
	t := &Tracer{counts: &counts{}}
	t.provider = sdktrace.NewTracerProvider(sdktrace.WithResource(about), sdktrace.WithSpanProcessor(counted{t.counts}),
		sdktrace.WithBatcher(&counting{exporter, t.counts}))
	t.tracer = t.provider.Tracer("github.com/blockyard-ai/blockyard")
	return t, nil
}

// Close sends the spans that wait and ends the Tracer. It waits for the collector for at most 5
// seconds. Spans that the collector refuses are logged and counted.
func (t *Tracer) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), closeTime, errors.New("the collector does not answer"))
	defer cancel()
	return t.provider.Shutdown(ctx)
}

// Stats returns the counts of spans.
func (t *Tracer) Stats() Stats {
	if t == nil {
		return Stats{}
	}
	return Stats{Ended: t.counts.ended.Load(), Exported: t.counts.exported.Load(), Failed: t.counts.failed.Load()}
}

// Begin starts the span of a client's request that arrived at a time. It continues the trace of
// the header traceparent, if there is one.
func (t *Tracer) Begin(ctx context.Context, name string, from http.Header, arrived time.Time) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	ctx = t.format.Extract(ctx, propagation.HeaderCarrier(from))
	ctx, s := t.tracer.Start(ctx, name, trace.WithTimestamp(arrived), trace.WithSpanKind(trace.SpanKindServer))
	return ctx, &Span{s}
}

// Start starts a part of the span that ctx carries.
func (t *Tracer) Start(ctx context.Context, name string) (context.Context, *Span) {
	return t.start(ctx, name, trace.SpanKindInternal)
}

// StartCall starts a part that calls another server.
func (t *Tracer) StartCall(ctx context.Context, name string) (context.Context, *Span) {
	return t.start(ctx, name, trace.SpanKindClient)
}

func (t *Tracer) start(ctx context.Context, name string, kind trace.SpanKind) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	ctx, s := t.tracer.Start(ctx, name, trace.WithSpanKind(kind))
	return ctx, &Span{s}
}

// Propagate sets the headers traceparent and tracestate of a request for the span that ctx
// carries. A nil Tracer leaves the client's headers alone.
func (t *Tracer) Propagate(ctx context.Context, to http.Header) {
	if t != nil {
		t.format.Inject(ctx, propagation.HeaderCarrier(to))
	}
}

// counted counts spans that are to be exported. It implements sdktrace.SpanProcessor.
type counted struct{ *counts }

func (c counted) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (c counted) OnEnd(s sdktrace.ReadOnlySpan) {
	if s.SpanContext().IsSampled() {
		c.ended.Add(1)
	}
}
func (c counted) Shutdown(context.Context) error   { return nil }
func (c counted) ForceFlush(context.Context) error { return nil }

// counting counts what an exporter does.
type counting struct {
	sdktrace.SpanExporter
	*counts
}

// ExportSpans implements sdktrace.SpanExporter.
func (c *counting) ExportSpans(ctx context.Context, all []sdktrace.ReadOnlySpan) error {
	err := c.SpanExporter.ExportSpans(ctx, all)
	if err != nil {
		c.failed.Add(uint64(len(all)))
	} else {
		c.exported.Add(uint64(len(all)))
	}
	return err
}
