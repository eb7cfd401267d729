package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/console"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

var update = flag.Bool("update", false, "write openapi.json")

// object is a JSON object.
type object = map[string]any

// operation is one operation of the document. control is true where only the control
// listener changes anything.
type operation struct {
	method, path, summary string
	control               bool
	body, answer          any      // nil for none; answer "" is text
	statuses              []int    // besides 200
	query                 []string // names of query parameters
	examples              []string // bodies, or queries of operations without a body
}

// routeBody stands for the body of POST /v1/route, which has a schema for each method.
type routeBody struct{}

// routeAnswers stands for the answers of POST /v1/route.
type routeAnswers struct{}

func operations() []operation {
	prompt := routertest.TokensJSON(sourcetest.Tokens(1, 2, 3))
	return []operation{
		{"POST", "/v1/route", "Routes a request, and tells the router how it goes on", false, routeBody{}, routeAnswers{}, []int{400, 403, 404, 408, 409, 413, 503, 529}, nil, []string{
			`{"method":"new","tokens":` + prompt + `,"request_id":"r-1","explain":true}`,
			`{"method":"new","tokens":` + prompt + `,"update_states":false,"pinned_worker":{"worker_id":2,"dp_rank":0},"timeout_ms":1000}`,
			`{"method":"new","tokens":` + prompt + `,"request_id":"r-2","model":"m","lora_name":"a","cache_namespace":"t","allowed_worker_ids":[1],` +
				`"routing_constraints":{"required_taints":[],"preferred_taints":{"b":0.5}},"router_config_override":{"router_temperature":0.5},"priority_jump":1.5,"strict_priority":2,"expected_output_tokens":100,` +
				`"block_mm_infos":[null,{"mm_objects":[{"mm_hash":7,"offsets":[[0,4]]}]}]}`,
			`{"method":"explain","tokens":` + prompt + `}`,
			`{"method":"mark_prefill","request_id":"r-1"}`,
			`{"method":"output_block","request_id":"r-1","decay_fraction":0.9}`,
			`{"method":"mark_free","request_id":"r-1"}`,
			`{"method":"potential_loads","tokens":` + prompt + `}`,
			`{"method":"overlap","tokens":` + prompt + `}`,
			`{"method":"add_request","request_id":"r-3","tokens":` + prompt + `,"worker":{"worker_id":1},"cached_tokens":4}`,
			`{"method":"register_workers","model":"m","worker_ids":[5,6],"block_size":4,"ttl_seconds":30}`,
			`{"method":"record_routing_decision","tokens":` + prompt + `,"worker":{"worker_id":5}}`,
		}},
		{"GET", "/v1/workers", "Workers that may get requests", false, nil, []workerAnswer{}, nil, nil, []string{""}},
		{"POST", "/v1/workers", "Registers a worker", true, registrationRequest{}, registrationAnswer{}, []int{400, 403, 409, 413}, nil, []string{
			`{"worker_id":5,"model":"m","block_size":4,"endpoint":"http://b:8000","ranks":2,"taints":["x"],"ttl_seconds":20}`}},
		{"DELETE", "/v1/workers", "Ends the registration of a worker", true, nil, map[string]uint64{}, []int{400, 403, 404}, []string{"worker_id"}, []string{"?worker_id=5"}},
		{"POST", "/v1/workers/{id}/drain", "Stops new requests to a worker server", true, nil, drainAnswer{}, []int{400, 403, 404}, []string{"dry_run"}, nil},
		{"POST", "/v1/workers/{id}/undrain", "Resumes requests to a worker server", true, nil, drainAnswer{}, []int{400, 403, 404}, []string{"dry_run"}, nil},
		{"POST", "/v1/snapshot", "Begins to save a snapshot", true, nil, snapshotAnswer{}, []int{400, 403, 409}, []string{"dry_run"}, nil},
		{"GET", "/v1/servers", "Worker servers and their states", false, nil, []serverAnswer{}, nil, nil, nil},
		{"GET", "/v1/feeds", "The feed of each publisher", false, nil, []feedAnswer{}, nil, nil, []string{""}},
		{"GET", "/v1/misses", "Why prompts were not cached, by the last requests", false, nil, missesAnswer{}, []int{400}, []string{"limit"}, []string{"", "?limit=5"}},
		{"GET", "/v1/decisions", "The last decisions, with the parts of their costs", false, nil, []decisionAnswer{}, []int{400}, []string{"limit"}, []string{"", "?limit=5"}},
		{"GET", "/v1/history", "Numbers of the last 15 minutes", false, nil, console.Past{}, nil, nil, []string{""}},
		{"POST", "/v1/tokens", "The tokens of an OpenAI request's prompt", false, object{}, Tokenized{}, []int{400, 408, 409, 413, 503}, nil, nil},
		{"GET", "/v1/sources", "Metrics of the sources of events", false, nil, []source.Metrics{}, nil, nil, []string{""}},
		{"GET", "/v1/agents", "Agents that are followed over HTTP", false, nil, []source.Agent{}, nil, nil, []string{""}},
		{"GET", "/v1/dump", "Events that make an empty index equal to the router's", true, nil, []object{}, []int{403, 404}, []string{"model"}, []string{"", "?model=m"}},
		{"GET", "/v1/bookings", "Booked requests", true, nil, []bookingAnswer{}, []int{403}, nil, []string{""}},
		{"GET", "/busy_threshold", "Busy thresholds", false, nil, busyAnswer{}, []int{400, 404, 503}, []string{"model"}, []string{"", "?model=m"}},
		{"POST", "/busy_threshold", "Changes busy thresholds", true, busyBody{}, busyAnswer{}, []int{400, 403, 404, 413, 503}, nil, []string{
			`{"active_prefill_tokens_threshold":100000,"active_decode_blocks_threshold":null}`, `{"model":"m","active_decode_blocks_threshold":0.5}`}},
		{"GET", "/metrics", "Metrics in Prometheus' text format", false, nil, "", nil, nil, []string{""}},
		{"GET", "/openapi.json", "This document", false, nil, object{}, nil, nil, []string{""}},
		{"GET", "/healthz", "Whether the process answers", false, nil, map[string]string{}, nil, nil, []string{""}},
		{"GET", "/readyz", "Whether the router can route", false, nil, map[string]string{}, []int{503}, nil, []string{""}},
	}
}

// busyBody is the body of POST /busy_threshold.
type busyBody struct {
	busyAnswer
	Model *string `json:"model"`
}

// document returns the OpenAPI document of the operations.
func document() object {
	paths := object{}
	for _, o := range operations() {
		content := object{"application/json": object{"schema": nil}}
		if o.answer == "" {
			content = object{"text/plain": object{"schema": object{"type": "string"}}}
		} else {
			content["application/json"] = object{"schema": schema(o.answer, false)}
		}
		responses := object{"200": object{"description": "OK", "content": content}}
		for _, status := range o.statuses {
			failure := object{"$ref": "#/components/schemas/Error"}
			if status == 529 {
				failure = object{"anyOf": []any{object{"$ref": "#/components/schemas/Rejected"}, failure}}
			}
			text := cmp.Or(http.StatusText(status), "Overloaded; http_overload_status sets another status")
			responses[fmt.Sprint(status)] = object{"description": text, "content": object{"application/json": object{"schema": failure}}}
		}
		op := object{"summary": o.summary, "responses": responses, "x-listener": "http"}
		if o.control {
			op["x-listener"] = "control"
		}
		parameters := []any{}
		for _, name := range o.query {
			parameters = append(parameters, object{"name": name, "in": "query", "required": name == "worker_id", "schema": object{"type": "string"}})
		}
		if strings.Contains(o.path, "{id}") {
			parameters = append(parameters, object{"name": "id", "in": "path", "required": true, "schema": object{"type": "string"}})
		}
		if o.path == "/v1/route" {
			parameters = append(parameters, object{"name": RequestIDHeader, "in": "header", "schema": object{"type": "string", "maxLength": maxRequestID}})
		}
		if len(parameters) > 0 {
			op["parameters"] = parameters
		}
		if o.body != nil {
			examples := object{}
			for i, e := range o.examples {
				var v any
				if err := json.Unmarshal([]byte(e), &v); err != nil {
					panic(err)
				}
				examples[fmt.Sprintf("example-%02d", i+1)] = object{"value": v}
			}
			op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": schema(o.body, true), "examples": examples}}}
		}
		if paths[o.path] == nil {
			paths[o.path] = object{}
		}
		paths[o.path].(object)[strings.ToLower(o.method)] = op
	}
	return object{
		"openapi": "3.1.0",
		"info":    object{"title": "Blockyard router", "version": "1", "description": "Decisions for gateways, inspection, and what operators change. Operations with x-listener control change something on the control listener only; docs/router-api.md says where."},
		"paths":   paths,
		"components": object{"schemas": object{
			"Error": schemaOf(reflect.TypeFor[errorAnswer](), false), "Rejected": schemaOf(reflect.TypeFor[rejectedAnswer](), false),
		}},
	}
}

// TestOpenAPIDocument: the served document is that of the handlers' types.
func TestOpenAPIDocument(t *testing.T) {
	want, err := json.MarshalIndent(document(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile("openapi.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile("openapi.json")
	if err != nil || !bytes.Equal(have, want) {
		t.Errorf("openapi.json is not that of the handlers (%v): go test ./router/api -run OpenAPI -update", err)
	}
}

// TestOpenAPIHasEveryRoute: each pattern in the sources of this package is in the document, and
// the document has no other.
func TestOpenAPIHasEveryRoute(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	routes := map[string]bool{}
	pattern := regexp.MustCompile(`"((?:GET|POST|PUT|PATCH|DELETE) /[^" ]*)"`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range pattern.FindAllSubmatch(text, -1) {
			routes[string(m[1])] = true
		}
	}
	documented := map[string]bool{}
	for _, o := range operations() {
		documented[o.method+" "+o.path] = true
	}
	if len(routes) < 10 || !maps.Equal(routes, documented) {
		t.Errorf("handlers have %v\nthe document has %v", slices.Sorted(maps.Keys(routes)), slices.Sorted(maps.Keys(documented)))
	}
}

// TestOpenAPIExamples: example bodies fit their schemas, the handlers accept them, and the
// answers fit theirs. What only operators change is refused at the other listener.
func TestOpenAPIExamples(t *testing.T) {
	routertest.OnRegistry(t, registry.Options{}, func(b *routertest.Bench, g *registry.Source) {
		routertest.TwoWorkers(b)
		a := New(b.Router, Options{})
		for _, o := range operations() {
			if o.examples == nil { // needs worker servers, which servers_test.go has
				continue
			}
			for _, example := range o.examples {
				path, body := o.path+example, ""
				if o.body != nil {
					path, body = o.path, example
					if err := fits(schema(o.body, true), decoded(t, example)); err != nil {
						t.Errorf("%s: %v", example, err)
					}
				}
				h := a.Handler()
				if o.control {
					if r := routertest.Call(t, h, o.method, path, "", body); r.StatusCode != http.StatusForbidden {
						t.Errorf("%s %s: %d at the listener of gateways", o.method, path, r.StatusCode)
					}
				}
				if o.control || strings.Contains(body, "register_workers") {
					h = a.ControlHandler()
				}
				r := routertest.Call(t, h, o.method, path, "", body)
				text := routertest.Text(t, r)
				if r.StatusCode != http.StatusOK {
					t.Errorf("%s %s %.200s: %d %s", o.method, path, body, r.StatusCode, text)
				} else if o.answer != "" {
					if err := fits(schema(o.answer, false), decoded(t, text)); err != nil {
						t.Errorf("%s %s %.80s answers %.200s: %v", o.method, path, body, text, err)
					}
				}
				if strings.HasSuffix(o.path, "/workers") && o.control || strings.Contains(body, "register_workers") {
					b.Pass(2 * time.Second)
				}
			}
		}
		for _, bad := range []string{`{"method":"new"}`, `{"method":"mark_free","tokens":[1]}`, `{"method":"old","tokens":[1]}`, `{"method":"new","tokens":[-1]}`, `{"method":"new","tokens":[1],"colour":1}`} {
			if err := fits(routeSchema(), decoded(t, bad)); err == nil {
				t.Errorf("the schema takes %s", bad)
			}
			if r, text := b.Route(a.Handler(), "x", bad); r.StatusCode != http.StatusBadRequest {
				t.Errorf("the handler takes %s: %s", bad, text)
			}
		}
	})
}
