package spanstest

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span that the collector got.
type Span struct {
	// Service is the name of the service in the span's resource.
	Service string
	Name    string
	// Trace, ID and Parent are in hexadecimal digits. Parent is empty for a root.
	Trace, ID, Parent string
	// Kind is that of OTLP: 1 internal, 2 server, 3 client.
	Kind int
	// Failed is true for a span with the status error.
	Failed     bool
	Attributes map[string]string
	// Start and End are in nanoseconds since 1970.
	Start, End uint64
}

// Collector receives spans at URL.
type Collector struct {
	*httptest.Server

	mu     sync.Mutex
	spans  []Span
	refuse int
}

// New starts a Collector. The caller closes it.
func New() *Collector {
	c := &Collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(c.receive))
	return c
}

// Refuse has the collector answer with a status from now on; 0 ends that.
func (c *Collector) Refuse(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = status
}

// Spans returns the spans so far, in the order in which they came.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

func (c *Collector) receive(w http.ResponseWriter, r *http.Request) {
	got, err := read(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != 0 {
		http.Error(w, "refused", c.refuse)
		return
	}
	c.spans = append(c.spans, got...)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// read decodes a request of an exporter.
func read(r *http.Request) ([]Span, error) {
	if kind := r.Header.Get("Content-Type"); r.URL.Path != "/v1/traces" || kind != "application/x-protobuf" {
		return nil, fmt.Errorf("path %s, content type %q: want /v1/traces, application/x-protobuf", r.URL.Path, kind)
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			return nil, err
		}
		body = z
	}
	text, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	var m collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(text, &m); err != nil {
		return nil, err
	}
	var all []Span
	for _, rs := range m.GetResourceSpans() {
		service := texts(rs.GetResource().GetAttributes())["service.name"]
		for _, scope := range rs.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				all = append(all, Span{
					Service: service, Name: s.GetName(), Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()),
					Parent: hex.EncodeToString(s.GetParentSpanId()), Kind: int(s.GetKind()),
					Failed:     s.GetStatus().GetCode() == trace.Status_STATUS_CODE_ERROR,
					Attributes: texts(s.GetAttributes()), Start: s.GetStartTimeUnixNano(), End: s.GetEndTimeUnixNano(),
				})
			}
		}
	}
	return all, nil
}

// texts returns attributes as texts.
func texts(all []*common.KeyValue) map[string]string {
	out := make(map[string]string, len(all))
	for _, a := range all {
		switch v := a.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			out[a.GetKey()] = v.StringValue
		case *common.AnyValue_IntValue:
			out[a.GetKey()] = fmt.Sprint(v.IntValue)
		}
	}
	return out
}
