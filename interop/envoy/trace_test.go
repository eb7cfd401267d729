package envoy

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/router/frontend/spans/spanstest"
)

// A client's trace goes through Envoy and the router to the worker.
func TestEnvoyPassesTraces(t *testing.T) {
	c := spanstest.New()
	defer c.Close()
	b := newBed(t)
	b.router.Kill()
	b.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_BSP_SCHEDULE_DELAY=10"}
	b.startRouter("127.0.0.1:0")
	b.startEnvoy(documented(t, complete))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/v1/completions", strings.NewReader(completion(prompt(1, 64))))
	if err != nil {
		t.Fatal(err)
	}
	const trace = "0af7651916cd43dd8448eb211c80319c"
	r.Header.Set("Traceparent", "00-"+trace+"-b7ad6b7169203331-01")
	r.Header.Set("Tracestate", "vendor=opaque")
	resp, err := b.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v", resp.StatusCode, err)
	}
	var upstream spanstest.Span
	b.until("the collector has the call of the worker", func() (bool, error) {
		all := c.Spans()
		at := slices.IndexFunc(all, func(s spanstest.Span) bool { return s.Name == "upstream" })
		if at >= 0 {
			upstream = all[at]
		}
		return at >= 0, nil
	})
	got := slices.Concat(b.workers[0].requests(), b.workers[1].requests())
	if len(got) != 1 {
		t.Fatalf("%d requests came to workers, want 1", len(got))
	}
	if parent := got[0].header.Get("Traceparent"); parent != "00-"+trace+"-"+upstream.ID+"-01" || got[0].header.Get("Tracestate") != "vendor=opaque" {
		t.Errorf("the worker got %q, %q; want the trace %s and the span %s", parent, got[0].header.Get("Tracestate"), trace, upstream.ID)
	}
}
