package extproc_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/frontend"
	"github.com/blockyard-ai/blockyard/router/frontend/extproc"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/workers"
)

const (
	streamed  = `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9],"max_tokens":2,"stream":true}`
	event     = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n"
	usage     = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n"
	done      = "data: [DONE]\n\n"
	eventKind = "text/event-stream; charset=utf-8"
)

// metadata makes metadata with one value.
func metadata(namespace, key string, value *structpb.Value) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespace: {Fields: map[string]*structpb.Value{key: value}}}}
}

// A stream is decided, passed on and followed in both modes. Header and metadata name the
// same endpoints, the booked worker first.
func TestStream(t *testing.T) {
	for name, modes := range map[string]*extprocv3.ProtocolConfiguration{"duplex": duplex, "buffered": buffered} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 3, router.Options{}, frontend.Options{})
			g := b.gateway(modes)
			h, r, body := g.request(streamed, nil)
			endpoints := strings.Split(h["x-gateway-destination-endpoint"], ",")
			sorted := slices.Clone(endpoints)
			slices.Sort(sorted)
			if want := []string{endpoint(1), endpoint(2), endpoint(3)}; !slices.Equal(sorted, want) {
				t.Errorf("endpoints %v, want %v in any order", endpoints, want)
			}
			if got := r.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()["x-gateway-destination-endpoint"].GetStringValue(); got != strings.Join(endpoints, ",") {
				t.Errorf("metadata has %q, the header %v", got, endpoints)
			}
			if !strings.Contains(body, `"stream_options":{"include_usage":true}`) || h["content-length"] != fmt.Sprint(len(body)) {
				t.Errorf("the worker gets %q with the length %q", body, h["content-length"])
			}
			if b.booked() != 1 {
				t.Errorf("%d requests are booked, want 1", b.booked())
			}
			told := g.answer("200", eventKind, nil)
			id := strings.TrimSuffix(told["x-blockyard-worker"], "/0")
			if endpoints[0] != "10.0.0."+id+":8000" {
				t.Errorf("the answer is of worker %s, the endpoint %s", id, endpoints[0])
			}
			half := len(event) / 2
			if got := g.parts(": ping\n\n"+event[:half], event[half:]+usage, done); got != event+done {
				t.Errorf("the client got %q, want %q", got, event+done)
			}
			b.expectIdle()
			b.expectOutcome(workers.OutcomeOK)
			if !slices.Equal(b.directory.reported, []bool{true}) {
				t.Errorf("cached tokens were reported %v, want once", b.directory.reported)
			}
		})
	}
}

// An answer that is not streamed, and a worker's error, pass as they are.
func TestWhole(t *testing.T) {
	ok := `{"choices":[{"text":"ab"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}`
	for name, c := range map[string]struct {
		status, body string
		outcome      workers.Outcome
	}{
		"ok":              {"200", ok, workers.OutcomeOK},
		"client's error":  {"400", `{"error":{"message":"no"}}`, workers.OutcomeClient},
		"worker's error":  {"503", `{"error":{"message":"busy"}}`, workers.OutcomeFailed},
		"no error's body": {"502", "", workers.OutcomeFailed},
	} {
		for _, modes := range []*extprocv3.ProtocolConfiguration{duplex, buffered} {
			t.Run(name+" "+modes.GetRequestBodyMode().String(), func(t *testing.T) {
				b := newBench(t, 1, router.Options{}, frontend.Options{})
				g := b.gateway(modes)
				sent := strings.Replace(streamed, "true", "false", 1)
				if _, _, body := g.request(sent, nil); body != sent {
					t.Errorf("the worker gets %s, want %s", body, sent)
				}
				g.answer(c.status, "application/json", nil)
				half := len(c.body) / 2
				if got := g.parts(c.body[:half], c.body[half:]); got != c.body {
					t.Errorf("the client got %q, want %q", got, c.body)
				}
				b.expectIdle()
				b.expectOutcome(c.outcome)
			})
		}
	}
}

// A stream whose first event is the worker's error reaches the client as it is.
func TestFirstEventError(t *testing.T) {
	b := newBench(t, 1, router.Options{}, frontend.Options{})
	g := b.gateway(duplex)
	g.request(streamed, nil)
	g.answer("200", eventKind, nil)
	failure := `data: {"error":{"message":"engine died","code":500}}` + "\n\n"
	if got := g.parts(": ping\n\n", failure+done); got != ": ping\n\n"+failure+done {
		t.Errorf("the client got %q", got)
	}
	b.expectIdle()
	b.expectOutcome(workers.OutcomeFailed)
}

// A stream that ends at any point frees the booking and says nothing of the worker.
func TestCancel(t *testing.T) {
	steps := []func(*gateway){
		func(g *gateway) { g.begin(nil) },
		func(g *gateway) { g.begin(nil); g.body(streamed[:10], false) },
		func(g *gateway) { g.request(streamed, nil) },
		func(g *gateway) { g.request(streamed, nil); g.answer("200", eventKind, nil) },
		func(g *gateway) {
			g.request(streamed, nil)
			g.answer("200", eventKind, nil)
			g.part(event, false)
			g.recv()
		},
	}
	for i, step := range steps {
		for name, leave := range map[string]func(*gateway){
			"cancel": func(g *gateway) { g.cancel() },
			"close":  func(g *gateway) { _ = g.stream.CloseSend() },
		} {
			t.Run(fmt.Sprint(name, i), func(t *testing.T) {
				b := newBench(t, 1, router.Options{}, frontend.Options{})
				g := b.gateway(duplex)
				step(g)
				if i >= 2 && b.booked() != 1 {
					t.Errorf("%d requests are booked, want 1", b.booked())
				}
				leave(g)
				for {
					if _, err := g.stream.Recv(); err != nil {
						break
					}
				}
				b.expectIdle()
				if i >= 2 {
					b.expectOutcome(workers.OutcomeClient)
				}
			})
		}
	}
}

// Refusals have the Door's status and OpenAI's shape. Nothing stays booked.
func TestRefused(t *testing.T) {
	list := func(all ...any) *structpb.Value {
		l, err := structpb.NewList(all)
		if err != nil {
			t.Fatal(err)
		}
		return structpb.NewListValue(l)
	}
	subset := func(v *structpb.Value) *corev3.Metadata {
		return metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", v)
	}
	for name, c := range map[string]struct {
		body   string
		meta   *corev3.Metadata
		status int
		code   string
	}{
		"bad JSON":       {`{"model":`, nil, 400, "400"},
		"unknown model":  {`{"model":"x","prompt":[1]}`, nil, 404, "model_not_found"},
		"empty subset":   {streamed, subset(list()), 503, "no_workers"},
		"foreign subset": {streamed, subset(list("10.9.9.9:8000")), 503, "no_workers"},
	} {
		for _, modes := range []*extprocv3.ProtocolConfiguration{duplex, buffered} {
			t.Run(name+" "+modes.GetRequestBodyMode().String(), func(t *testing.T) {
				b := newBench(t, 1, router.Options{}, frontend.Options{})
				_, r, _ := b.gateway(modes).request(c.body, c.meta)
				if status, code := errorOf(t, r); status != c.status || code != c.code {
					t.Errorf("status %d, code %s; want %d, %s", status, code, c.status, c.code)
				}
				b.expectIdle()
			})
		}
	}
}

// A request without a worker that is free enough is status 429, as the protocol asks, also
// where the Door's own clients get Anthropic's 529.
func TestOverloaded(t *testing.T) {
	ro := router.Options{Config: routertest.Configured(func(c *config.Config) { c.ActivePrefillTokensThreshold = new(uint64(5)) })}
	b := newBench(t, 1, ro, frontend.Options{OverloadStatus: 529})
	first := b.gateway(duplex)
	first.request(streamed, nil)
	_, r, _ := b.gateway(duplex).request(streamed, nil)
	if status, code := errorOf(t, r); status != 429 || code != "overloaded" {
		t.Errorf("status %d, code %s; want 429, overloaded", status, code)
	}
	if got := setHeaders(r.GetImmediateResponse().GetHeaders())["retry-after"]; got != "1" {
		t.Errorf("retry-after is %q, want 1", got)
	}
}

// The offered endpoints bound the choice and the fallbacks.
func TestSubset(t *testing.T) {
	b := newBench(t, 4, router.Options{}, frontend.Options{})
	meta := metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", structpb.NewStringValue(endpoint(2)+", "+endpoint(4)))
	for range 4 {
		g := b.gateway(duplex)
		h, _, _ := g.request(streamed, meta)
		got := strings.Split(h["x-gateway-destination-endpoint"], ",")
		slices.Sort(got)
		if want := []string{endpoint(2), endpoint(4)}; !slices.Equal(got, want) {
			t.Errorf("endpoints %v, want %v", got, want)
		}
		g.cancel()
	}
	b.expectIdle()
}

// OnlyChosen names one endpoint. A streamed answer without its usage event has no length.
func TestOnlyChosen(t *testing.T) {
	b := newBench(t, 3, router.Options{}, frontend.Options{}, func(o *extproc.Options) { o.OnlyChosen = true })
	g := b.gateway(duplex)
	h, _, _ := g.request(streamed, nil)
	if got := h["x-gateway-destination-endpoint"]; !slices.Contains([]string{endpoint(1), endpoint(2), endpoint(3)}, got) {
		t.Errorf("the endpoint is %q, want one of a worker", got)
	}
	g.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: headerMap(":status", "200", "content-type", eventKind, "content-length", "999")}})
	if got := g.recv().GetResponseHeaders().GetResponse().GetHeaderMutation().GetRemoveHeaders(); !slices.Equal(got, []string{"content-length"}) {
		t.Errorf("the headers %v are removed, want content-length", got)
	}
	g.parts(event, usage, done)
	b.expectIdle()
}

// A request that the gateway sent to a fallback is booked there, and freed once.
func TestMoved(t *testing.T) {
	b := newBench(t, 2, router.Options{}, frontend.Options{})
	g := b.gateway(duplex)
	h, _, _ := g.request(streamed, nil)
	endpoints := strings.Split(h["x-gateway-destination-endpoint"], ",")
	if len(endpoints) != 2 {
		t.Fatalf("endpoints %v, want two", endpoints)
	}
	g.answer("200", eventKind, metadata("envoy.lb", "x-gateway-destination-endpoint-served", structpb.NewStringValue(endpoints[1])))
	g.part(event, false)
	g.recv()
	served := kv.WorkerID(2)
	if endpoints[1] == endpoint(1) {
		served = 1
	}
	model, err := b.router.Model("m")
	if err != nil {
		t.Fatal(err)
	}
	loads, err := model.Decide().GetPotentialLoads(&decide.Query{Tokens: []uint32{99}})
	if err != nil || len(loads) != 2 {
		t.Fatalf("loads %v, %v; want two", loads, err)
	}
	for _, l := range loads {
		if busy := l.DecodeBlocks > 1; busy != (l.Worker.ID == served) {
			t.Errorf("worker %s would have %d blocks; worker %d served", l.Worker, l.DecodeBlocks, served)
		}
	}
	if got := g.parts(done); got != done {
		t.Errorf("the client got %q, want %q", got, done)
	}
	b.expectIdle()
	b.expectOutcome(workers.OutcomeFailed, workers.OutcomeOK)
}

// Modes that cannot work are refused with the setting's name.
func TestModes(t *testing.T) {
	b := newBench(t, 1, router.Options{}, frontend.Options{})
	for want, modes := range map[string]*extprocv3.ProtocolConfiguration{
		"request_body_mode is NONE":     {ResponseBodyMode: filterv3.ProcessingMode_STREAMED},
		"request_body_mode is STREAMED": {RequestBodyMode: filterv3.ProcessingMode_STREAMED, ResponseBodyMode: filterv3.ProcessingMode_STREAMED},
		"response_body_mode is NONE":    {RequestBodyMode: filterv3.ProcessingMode_BUFFERED},
	} {
		g := b.gateway(modes)
		g.begin(nil)
		r := g.recv()
		if status, _ := errorOf(t, r); status != 500 || !strings.Contains(string(r.GetImmediateResponse().GetBody()), want) {
			t.Errorf("status %d, body %s; want 500, %s", status, r.GetImmediateResponse().GetBody(), want)
		}
	}
}

// The gateway gets what a dry run of the router names, on the same state.
func TestSamePick(t *testing.T) {
	b := newBench(t, 5, router.Options{}, frontend.Options{})
	body := func(conversation, length int) (string, []uint32) {
		var tokens []uint32
		var text strings.Builder
		for i := range length {
			tokens = append(tokens, uint32(conversation*1000+i))
			fmt.Fprintf(&text, ",%d", tokens[i])
		}
		return `{"model":"m","prompt":[` + text.String()[1:] + `]}`, tokens
	}
	ask := func(modes *extprocv3.ProtocolConfiguration, body string) string {
		g := b.gateway(modes)
		g.request(body, nil)
		worker := g.answer("200", "application/json", nil)["x-blockyard-worker"]
		g.parts("{}")
		b.expectIdle()
		return worker
	}
	picks := make(map[string]int)
	for i := range 20 {
		text, _ := body(i, 40)
		ask(duplex, text)
	}
	for i := range 20 {
		text, tokens := body(i, 80)
		m, err := b.router.FindBestMatch(t.Context(), &router.Request{Model: "m", Tokens: tokens})
		if err != nil {
			t.Fatal(err)
		}
		modes := []*extprocv3.ProtocolConfiguration{duplex, buffered}[i%2]
		if got := ask(modes, text); got != m.Worker.String() {
			t.Errorf("conversation %d: the gateway got %s, the dry run %s", i, got, m.Worker)
		}
		picks[m.Worker.String()]++
	}
	if len(picks) < 2 {
		t.Errorf("all conversations are at one worker: %v", picks)
	}
}

// Paths that the Door answers itself need no worker.
func TestModels(t *testing.T) {
	b := newBench(t, 1, router.Options{}, frontend.Options{})
	g := b.gateway(duplex)
	h := headerMap(":method", "GET", ":path", "/v1/models", ":authority", "front")
	h.EndOfStream = true
	g.send(&extprocv3.ProcessingRequest{ProtocolConfig: duplex, Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: h}})
	i := g.recv().GetImmediateResponse()
	if i.GetStatus().GetCode() != 200 || !strings.Contains(string(i.GetBody()), `"id":"m"`) {
		t.Errorf("got %v", i)
	}
}

// The health service says whether requests would be served.
func TestHealth(t *testing.T) {
	b := newBench(t, 1, router.Options{}, frontend.Options{})
	client := grpc_health_v1.NewHealthClient(b.conn)
	check := func(service string) string {
		r, err := client.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetStatus().String()
	}
	for _, service := range []string{"", "readiness", "liveness", "envoy.service.ext_proc.v3.ExternalProcessor"} {
		if got := check(service); got != "SERVING" {
			t.Errorf("%q is %s", service, got)
		}
	}
	b.directory.workers = nil
	if got := check("readiness"); got != "NOT_SERVING" {
		t.Errorf("readiness is %s without workers", got)
	}
	if got := check("liveness"); got != "SERVING" {
		t.Errorf("liveness is %s without workers", got)
	}
}
