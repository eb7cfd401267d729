package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/frontend/openai"
)

var (
	errStreamEnded = errors.New("the gateway ended the request")
	errTwoAnswers  = errors.New("the gateway sent two answers")
	errAnswered    = errors.New("the gateway answered before the decision")
)

// call is one request of a client. The Door handles it in the goroutine of run; receive
// takes Envoy's messages in another.
type call struct {
	server *Server
	stream grpc.BidiStreamingServer[extprocv3.ProcessingRequest, extprocv3.ProcessingResponse]
	ctx    context.Context
	end    context.CancelCauseFunc
	first  *extprocv3.ProcessingRequest

	// duplexIn and duplexOut are true for bodies in the mode FULL_DUPLEX_STREAMED.
	duplexIn, duplexOut bool
	header              http.Header
	pseudo              map[string]string
	body                *io.PipeReader
	bodyIn              *io.PipeWriter
	// trailers is true when the request has trailers. It is set before the body ends.
	trailers bool

	// endpoints are the workers that the decision named, by endpoint.
	endpoints map[string]kv.WorkerID
	primary   string
	decided   atomic.Pointer[frontend.Decision]
	answers   chan answered
	answer    *http.Response
	relay     *relay
	// broke is why the Door ended the request before the end of its answer.
	broke    atomic.Pointer[error]
	received chan struct{}

	sending sync.Mutex
}

// answered is the beginning of a worker's answer.
type answered struct {
	response *http.Response
	served   string
}

func newCall(s *Server, stream grpc.BidiStreamingServer[extprocv3.ProcessingRequest, extprocv3.ProcessingResponse], first *extprocv3.ProcessingRequest) *call {
	c := &call{server: s, stream: stream, first: first, answers: make(chan answered, 1), relay: newRelay(), received: make(chan struct{})}
	c.ctx, c.end = context.WithCancelCause(stream.Context())
	c.body, c.bodyIn = io.Pipe()
	modes := first.GetProtocolConfig()
	c.duplexIn = modes.GetRequestBodyMode() == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	c.duplexOut = modes.GetResponseBodyMode() == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	c.header, c.pseudo = headersOf(first.GetRequestHeaders().GetHeaders())
	return c
}

// run answers Envoy until the request has ended.
func (c *call) run() error {
	whole := c.first.GetRequestHeaders().GetEndOfStream()
	if fault := faultOfModes(c.first.GetProtocolConfig()); fault != "" && !whole {
		c.server.log.Warn("a gateway's filter cannot work", zap.String("fault", fault))
		body := openai.Other.ErrorBody(http.StatusInternalServerError, "server_error", fault, "", "gateway_configuration")
		return c.reply(immediate(http.StatusInternalServerError, http.Header{"Content-Type": {"application/json"}}, body))
	}
	switch {
	case whole:
		// A pipe's writer closes without error.
		_ = c.bodyIn.Close()
	case !c.duplexIn:
		// Envoy sends the body after the reply to the headers, and keeps the headers.
		if err := c.reply(requestHeaders(&extprocv3.CommonResponse{})); err != nil {
			return err
		}
	}
	go c.receive()
	c.serve()
	c.relay.stop(nil)
	// A pipe's reader closes without error.
	_ = c.body.Close()
	if c.decided.Load() == nil && c.ctx.Err() == nil {
		return c.reply(immediate(c.relay.status, c.relay.header, c.relay.take()))
	}
	if broke := c.broke.Load(); broke != nil {
		return status.Error(codes.DeadlineExceeded, (*broke).Error())
	}
	<-c.received
	return nil
}

// serve has the Door handle the request.
func (c *call) serve() {
	defer func() {
		if p := recover(); p != nil {
			c.server.log.Error("BUG: the door panicked", zap.Any("panic", p), zap.Stack("stack"))
			c.relay.WriteHeader(http.StatusInternalServerError)
		}
	}()
	r, err := c.request()
	if err != nil {
		c.relay.Header().Set("Content-Type", "application/json")
		c.relay.WriteHeader(http.StatusBadRequest)
		// A relay keeps what is written.
		_, _ = c.relay.Write(openai.Other.ErrorBody(http.StatusBadRequest, "invalid_request_error", err.Error(), "", ""))
		return
	}
	c.server.handler.ServeHTTP(c.relay, r)
}

// request returns the client's request as the Door reads it.
func (c *call) request() (*http.Request, error) {
	target, err := url.ParseRequestURI(c.pseudo[":path"])
	if err != nil {
		return nil, fmt.Errorf("path: %w", err)
	}
	through := &frontend.Through{Send: c.send}
	if subset, ok := subsetOf(c.first.GetMetadataContext()); ok {
		through.Only = c.server.at(c.ctx, subset)
	}
	forwarded := c.header.Get("X-Forwarded-For")
	r := &http.Request{
		Method: c.pseudo[":method"], URL: target, RequestURI: c.pseudo[":path"], Host: c.pseudo[":authority"],
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: c.header.Clone(), Body: c.body, ContentLength: -1,
		RemoteAddr: strings.TrimSpace(forwarded[strings.LastIndexByte(forwarded, ',')+1:]),
	}
	return r.WithContext(frontend.WithThrough(c.ctx, through)), nil
}

// send implements frontend.Through.
func (c *call) send(ctx context.Context, d *frontend.Decision) (*http.Response, error) {
	if c.answer != nil {
		return c.answer, nil // the request had moved
	}
	context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		if errors.Is(cause, context.Canceled) && c.ctx.Err() == nil {
			return // the Door has finished
		}
		if c.ctx.Err() == nil {
			c.broke.Store(&cause)
		}
		c.relay.stop(cause)
	})
	if err := c.decide(ctx, d); err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case a := <-c.answers:
		c.answer = a.response
		if a.served != "" && a.served != c.primary {
			if id, ok := c.endpoints[a.served]; ok {
				return nil, &frontend.MovedError{To: id}
			}
		}
		return a.response, nil
	}
}

// decide tells Envoy where the request goes.
func (c *call) decide(ctx context.Context, d *frontend.Decision) error {
	var err error
	if c.primary, err = c.server.names.endpoint(ctx, d.Worker); err != nil {
		// The Door counts a worker without an address as one that takes no connection.
		return &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	c.endpoints = map[string]kv.WorkerID{c.primary: d.Worker.ID}
	list, fallbacks := c.primary, d.Fallbacks
	if c.server.onlyChosen {
		fallbacks = nil
	}
	for _, w := range fallbacks {
		// A fallback without an address is none.
		e, err := c.server.names.endpoint(ctx, w)
		if _, double := c.endpoints[e]; err == nil && !double {
			c.endpoints[e] = w.ID
			list += "," + e
		}
	}
	headers := difference(c.header, d.Header)
	headers.SetHeaders = append(headers.SetHeaders, set(destinationKey, list))
	if d.Path != c.pseudo[":path"] {
		headers.SetHeaders = append(headers.SetHeaders, set(":path", d.Path))
	}
	if !c.first.GetRequestHeaders().GetEndOfStream() && (d.Edited || c.duplexIn) {
		headers.SetHeaders = append(headers.SetHeaders, set("Content-Length", length(d.Body)))
	}
	c.decided.Store(d)
	return c.replyDecision(d, headers, list)
}

// replyDecision sends the decision in the form of the request's mode.
func (c *call) replyDecision(d *frontend.Decision, headers *extprocv3.HeaderMutation, list string) error {
	common := &extprocv3.CommonResponse{HeaderMutation: headers, ClearRouteCache: true}
	var all []*extprocv3.ProcessingResponse
	switch {
	case c.first.GetRequestHeaders().GetEndOfStream():
		all = append(all, requestHeaders(common))
	case c.duplexIn:
		all = append(all, requestHeaders(common))
		for _, piece := range chunks(d.Body, !c.trailers) {
			all = append(all, requestBody(piece))
		}
		if c.trailers {
			all = append(all, requestTrailers())
		}
	default:
		if d.Edited {
			common.BodyMutation = replaced(d.Body)
		}
		all = append(all, requestBody(common))
	}
	all[0].DynamicMetadata = destination(list)
	for _, one := range all {
		if err := c.reply(one); err != nil {
			return err
		}
	}
	return nil
}

// receive takes Envoy's messages until the stream ends.
func (c *call) receive() {
	defer close(c.received)
	defer func() {
		c.end(errStreamEnded)
		// A pipe's writer closes without error.
		_ = c.bodyIn.CloseWithError(errStreamEnded)
	}()
	for {
		m, err := c.stream.Recv()
		if err != nil || c.take(m) != nil {
			return
		}
	}
}

// take handles one message.
func (c *call) take(m *extprocv3.ProcessingRequest) error {
	switch {
	case m.GetRequestBody() != nil:
		b := m.GetRequestBody()
		// The Door may have refused the request before its body ended.
		_, _ = c.bodyIn.Write(b.GetBody())
		if b.GetEndOfStream() || !c.duplexIn {
			_ = c.bodyIn.Close()
		}
	case m.GetRequestTrailers() != nil:
		c.trailers = c.duplexIn
		_ = c.bodyIn.Close()
		if !c.duplexIn {
			return c.reply(requestTrailers())
		}
	case m.GetResponseHeaders() != nil:
		return c.takeHeaders(m)
	case m.GetResponseBody() != nil:
		b := m.GetResponseBody()
		return c.replyBody(b.GetBody(), c.follow(b.GetBody(), b.GetEndOfStream()), b.GetEndOfStream())
	case m.GetResponseTrailers() != nil:
		if rest := c.follow(nil, true); len(rest) > 0 && c.duplexOut {
			if err := c.replyBody(nil, rest, false); err != nil {
				return err
			}
		}
		return c.reply(responseTrailers())
	}
	return nil
}

// takeHeaders begins the worker's answer.
func (c *call) takeHeaders(m *extprocv3.ProcessingRequest) error {
	d := c.decided.Load()
	if d == nil {
		c.end(errAnswered)
		return c.reply(responseHeaders(&extprocv3.CommonResponse{}))
	}
	h, pseudo := headersOf(m.GetResponseHeaders().GetHeaders())
	code, err := strconv.Atoi(pseudo[":status"])
	if err != nil {
		code = http.StatusBadGateway
	}
	kind, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	filtered := d.AddedUsage && kind == "text/event-stream" && code < http.StatusBadRequest
	c.relay.answerFrom(code, filtered)
	served := servedBy(m.GetMetadataContext())
	select {
	case c.answers <- answered{
		response: &http.Response{StatusCode: code, Header: h, Body: c.relay, ContentLength: -1, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1},
		served:   served,
	}:
	default:
		return errTwoAnswers
	}
	if m.GetResponseHeaders().GetEndOfStream() {
		c.follow(nil, true)
	}
	describe := d.Answer
	if served != "" && served != c.primary {
		// The headers are those of the decision for another worker.
		describe = nil
	}
	headers := mutation(describe)
	if filtered {
		// The client's answer is shorter than the worker's.
		headers.RemoveHeaders = append(headers.RemoveHeaders, "content-length")
	}
	return c.reply(responseHeaders(&extprocv3.CommonResponse{HeaderMutation: headers}))
}

// follow shows the Door a part of the answer and returns what the client gets in its place.
func (c *call) follow(part []byte, last bool) []byte {
	if c.decided.Load() == nil {
		return part
	}
	return c.relay.feed(part, last)
}

// replyBody answers a part of the worker's body.
func (c *call) replyBody(part, out []byte, last bool) error {
	if c.duplexOut {
		for _, piece := range chunks(out, last) {
			if err := c.reply(responseBody(piece)); err != nil {
				return err
			}
		}
		return nil
	}
	common := &extprocv3.CommonResponse{}
	if string(part) != string(out) {
		common.BodyMutation = replaced(out)
	}
	return c.reply(responseBody(common))
}

// reply sends one message.
func (c *call) reply(m *extprocv3.ProcessingResponse) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	return c.stream.Send(m)
}
