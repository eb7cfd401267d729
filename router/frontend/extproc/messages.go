package extproc

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Names of the protocol of endpoint pickers.
const (
	destinationKey = "x-gateway-destination-endpoint"
	servedKey      = "x-gateway-destination-endpoint-served"
	subsetKey      = "x-gateway-destination-endpoint-subset"
	lbNamespace    = "envoy.lb"
	hintNamespace  = "envoy.lb.subset_hint"
)

// maxChunk bounds the bytes of one message of a streamed body. Envoy has streams with 64 KiB.
const maxChunk = 62 << 10

// faultOfModes returns what a filter with these modes lacks; empty when it lacks nothing.
// Envoys before 1.34 tell no modes.
func faultOfModes(c *extprocv3.ProtocolConfiguration) string {
	if c == nil {
		return ""
	}
	switch c.GetRequestBodyMode() {
	case filterv3.ProcessingMode_BUFFERED, filterv3.ProcessingMode_FULL_DUPLEX_STREAMED:
	default:
		return "ext_proc: processing_mode.request_body_mode is " + c.GetRequestBodyMode().String() + ", want FULL_DUPLEX_STREAMED or BUFFERED"
	}
	switch c.GetResponseBodyMode() {
	case filterv3.ProcessingMode_STREAMED, filterv3.ProcessingMode_FULL_DUPLEX_STREAMED:
	default:
		return "ext_proc: processing_mode.response_body_mode is " + c.GetResponseBodyMode().String() + ", want FULL_DUPLEX_STREAMED or STREAMED"
	}
	return ""
}

// headersOf returns the headers of a message, and the pseudo headers, such as :path, apart.
func headersOf(m *corev3.HeaderMap) (http.Header, map[string]string) {
	h, pseudo := make(http.Header), make(map[string]string)
	for _, one := range m.GetHeaders() {
		value := one.GetValue()
		if raw := one.GetRawValue(); len(raw) > 0 {
			value = string(raw)
		}
		if strings.HasPrefix(one.GetKey(), ":") {
			pseudo[one.GetKey()] = value
			continue
		}
		h.Add(one.GetKey(), value)
	}
	return h, pseudo
}

// set returns a mutation of one header.
func set(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: strings.ToLower(name), RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// mutation sets all headers of h.
func mutation(h http.Header) *extprocv3.HeaderMutation {
	m := &extprocv3.HeaderMutation{}
	for name, values := range h {
		if len(values) > 0 {
			m.SetHeaders = append(m.SetHeaders, set(name, strings.Join(values, ",")))
		}
	}
	return m
}

// envoys are the headers that Envoy manages itself.
var envoys = []string{
	"Connection", "Content-Length", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// difference turns the headers from into the headers to.
func difference(from, to http.Header) *extprocv3.HeaderMutation {
	changed := make(http.Header)
	for name, values := range to {
		if !slices.Equal(values, from[name]) && !slices.Contains(envoys, name) {
			changed[name] = values
		}
	}
	m := mutation(changed)
	for name := range from {
		if _, kept := to[name]; !kept && !slices.Contains(envoys, name) {
			m.RemoveHeaders = append(m.RemoveHeaders, strings.ToLower(name))
		}
	}
	return m
}

// destination is the metadata with the chosen endpoints.
func destination(endpoints string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		lbNamespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			destinationKey: structpb.NewStringValue(endpoints),
		}}),
	}}
}

// subsetOf returns the endpoints that the gateway offers. ok is false when it offers all.
func subsetOf(m *corev3.Metadata) (endpoints map[string]bool, ok bool) {
	v := m.GetFilterMetadata()[hintNamespace].GetFields()[subsetKey]
	if v == nil {
		return nil, false
	}
	endpoints = make(map[string]bool)
	for _, one := range v.GetListValue().GetValues() {
		endpoints[strings.TrimSpace(one.GetStringValue())] = true
	}
	for one := range strings.SplitSeq(v.GetStringValue(), ",") {
		endpoints[strings.TrimSpace(one)] = true
	}
	return endpoints, true
}

// servedBy returns the endpoint that served, empty when the gateway does not say.
func servedBy(m *corev3.Metadata) string {
	return m.GetFilterMetadata()[lbNamespace].GetFields()[servedKey].GetStringValue()
}

// immediate answers the client in place of a worker.
func immediate(status int, h http.Header, body []byte) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status: &typev3.HttpStatus{Code: typev3.StatusCode(statusFor(status))}, Headers: mutation(h), Body: body,
			Details: "blockyard",
		},
	}}
}

// overloadedStatus is Anthropic's status for a server with too much to do.
const overloadedStatus = 529

// statusFor returns the status that Envoy can send. Envoy knows registered ones only.
func statusFor(status int) int {
	if _, known := typev3.StatusCode_name[int32(status)]; known && status >= 200 {
		return status
	}
	if status == overloadedStatus {
		return http.StatusTooManyRequests
	}
	return http.StatusServiceUnavailable
}

// chunks splits a body into messages of a streamed body.
func chunks(body []byte, last bool) (all []*extprocv3.CommonResponse) {
	for first := true; first || len(body) > 0; first = false {
		n := min(len(body), maxChunk)
		if n == 0 && !last {
			break
		}
		all = append(all, &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
			Mutation: &extprocv3.BodyMutation_StreamedResponse{
				StreamedResponse: &extprocv3.StreamedBodyResponse{Body: body[:n], EndOfStream: last && n == len(body)},
			},
		}})
		body = body[n:]
	}
	return all
}

// replaced is the mutation of a body that Envoy holds.
func replaced(body []byte) *extprocv3.BodyMutation {
	if len(body) == 0 {
		return &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_ClearBody{ClearBody: true}}
	}
	return &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: body}}
}

// length is a header value.
func length(body []byte) string { return strconv.Itoa(len(body)) }

func requestHeaders(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: c}}}
}

func requestBody(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: c}}}
}

func requestTrailers() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}}
}

func responseHeaders(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{Response: c}}}
}

func responseBody(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{Response: c}}}
}

func responseTrailers() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}}
}
