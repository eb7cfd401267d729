// Package spans traces requests through the front door with OpenTelemetry.
//
//	tracer, err := spans.Open(log)
//	ctx, span := tracer.Begin(ctx, r.Method+" "+path, r.Header, arrived)
//	ctx, part := tracer.Start(ctx, "upstream")
//	tracer.Propagate(ctx, toWorker)
//	part.End(err)
//	span.End(nil)
//
// Open reads the standard variables OTEL_*. Without an exporter in them Open returns nil. A
// nil Tracer and a nil Span do nothing and allocate nothing, so callers need no switch.
//
// Spans leave in batches over OTLP (HTTP, protobuf). A collector that does not answer costs
// memory for a bounded queue of spans; the spans beyond it are dropped. Stats counts them.
//
// Ownership: whoever calls Open calls Close, after the last span has ended. Methods may be
// called from any goroutine; a Span is for one goroutine.
package spans
