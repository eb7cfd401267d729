// Package spanstest is an OTLP collector for tests.
//
//	c := spanstest.New()
//	defer c.Close()
//	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
//	… open a spans.Tracer, end spans, close the tracer …
//	for _, s := range c.Spans() { … }
//
// The collector speaks OTLP over HTTP with protobuf. Methods may be called from any goroutine.
package spanstest
