package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// A field that a method would not look at is refused, not passed over.
func TestMethodsRefuseFieldsThatTheyDoNotTake(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		for _, c := range []struct{ body, want string }{
			{`{"method":"mark_free","request_id":"r","tokens":[1]}`, "tokens: not a field of method mark_free"},
			{`{"method":"mark_prefill","request_id":"r","decay_fraction":0.5}`, "decay_fraction: not a field of method mark_prefill"},
			{`{"method":"output_block","request_id":"r","timeout_ms":5}`, "timeout_ms: not a field of method output_block"},
			{`{"method":"new","tokens":[1],"decay_fraction":0}`, "decay_fraction: not a field of method new"},
			{`{"method":"potential_loads","tokens":[1],"request_id":"r"}`, "request_id: not a field of method potential_loads"},
			{`{"method":"potential_loads","tokens":[1],"pinned_worker":{"worker_id":1}}`, "pinned_worker: not a field of method potential_loads"},
			{`{"method":"overlap","tokens":[1],"router_config_override":{"router_temperature":1}}`, "router_config_override: not a field of method overlap"},
			{`{"method":"overlap","tokens":[1],"priority_jump":1}`, "priority_jump: not a field of method overlap"},
		} {
			if r, got := b.Route(h, "", c.body); r.StatusCode != http.StatusBadRequest || !strings.Contains(got, c.want) {
				t.Errorf("%s: %d %s, want %q", c.body, r.StatusCode, got, c.want)
			}
		}
		// What says nothing is no field.
		if r, got := b.Route(h, "", `{"method":"mark_free","request_id":"r","tokens":null,"lora_name":"","priority_jump":0}`); r.StatusCode != http.StatusOK {
			t.Errorf("empty fields: %d %s", r.StatusCode, got)
		}
	})
}

// Every field says which methods take it, and the document says the same.
func TestDocumentSaysWhichMethodsTakeAField(t *testing.T) {
	text, err := os.ReadFile("../../docs/router-api.md")
	if err != nil {
		t.Fatal(err)
	}
	const all = "new explain potential_loads overlap mark_prefill mark_free output_block add_request record_routing_decision register_workers"
	words := func(in string) string {
		if in == all {
			return "all"
		}
		return "`" + strings.ReplaceAll(in, " ", "`, `") + "`"
	}
	prompt := words("new explain potential_loads overlap add_request record_routing_decision")
	for i := range reflect.TypeFor[routeRequest]().NumField() {
		f := reflect.TypeFor[routeRequest]().Field(i)
		name, in := f.Tag.Get("json"), words(f.Tag.Get("in"))
		found := false
		for line := range strings.Lines(string(text)) {
			cells := strings.Split(line, " | ")
			if len(cells) == 4 && cells[0] == "| `"+name+"`" {
				found = cells[2] == in || in == prompt && cells[2] == "the same"
			}
		}
		if f.Tag.Get("in") == "" || !found {
			t.Errorf("%s is for %q, and the document does not say so", name, in)
		}
	}
}

// Texts that a request names are bounded, and the error says by what.
func TestLongNamesAreRefused(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		for field, c := range map[string]struct {
			format string
			most   int
		}{
			"lora_name":                              {`,"lora_name":"%s"`, maxName},
			"cache_namespace":                        {`,"cache_namespace":"%s"`, maxName},
			"request_id":                             {`,"request_id":"%s"`, maxRequestID},
			"routing_constraints.required_taints[1]": {`,"routing_constraints":{"required_taints":["a","%s"]}`, kvevent.MaxTaint},
			"routing_constraints.preferred_taints":   {`,"routing_constraints":{"preferred_taints":{"%s":1}}`, kvevent.MaxTaint},
		} {
			want := fmt.Sprintf("%s: %d bytes are more than %d", field, c.most+1, c.most)
			r, got := b.Route(h, "", routertest.NewBody(fmt.Sprintf(c.format, strings.Repeat("x", c.most+1)), 1))
			if r.StatusCode != http.StatusBadRequest || !strings.Contains(got, want) {
				t.Errorf("%d %.200s, want %q", r.StatusCode, got, want)
			}
			if r, got := b.Route(h, "", routertest.NewBody(fmt.Sprintf(c.format, strings.Repeat("x", c.most)), 1)); r.StatusCode == http.StatusBadRequest {
				t.Errorf("%s as long as allowed: %.200s", field, got)
			}
		}
	})
}

// What cannot be read is answered with what could be, in words that are not Go's.
func TestMismatchesNameWhatIsWanted(t *testing.T) {
	for body, want := range map[string]string{
		`[]`:               "body: want an object, got array",
		`7`:                "body: want an object, got number",
		`{"method":["a"]}`: "method: want a string, got array",
		`{"method":"new","tokens":[1],"priority_jump":1e999}`:                               "priority_jump: want a number in -1.7976931348623157e+308..1.7976931348623157e+308, got number 1e999",
		`{"method":"new","tokens":[1],"strict_priority":-1}`:                                "strict_priority: want an integer in 0..4294967295, got number -1",
		`{"method":"new","tokens":[1],"expected_output_tokens":-1}`:                         "expected_output_tokens: want an integer in 0..2147483647, got number -1",
		`{"method":"new","tokens":[1],"timeout_ms":1.5}`:                                    "timeout_ms: want an integer in 0..3600000, got number 1.5",
		`{"method":"output_block","decay_fraction":"a"}`:                                    "decay_fraction: want a number in 0..1, got string",
		`{"method":"new","tokens":[1],"allowed_worker_ids":[-1]}`:                           "want an integer in 0..18446744073709551615, got number -1",
		`{"method":"new","tokens":[1],"allowed_worker_ids":7}`:                              "allowed_worker_ids: want an array, got number",
		`{"method":"new","tokens":[1],"routing_constraints":7}`:                             "routing_constraints: want an object, got number",
		`{"method":"new","tokens":[1],"routing_constraints":{"preferred_taints":{"a":{}}}}`: "want a number in",
	} {
		_, err := decodeRoute(strings.NewReader(body))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

// The id in the body names the request for "new" as for what is said of it later, and
// what was not on the account is said not to have been.
func TestRequestIDInTheBody(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		if r, got := b.Route(h, "header", routertest.NewBody(`,"request_id":"body"`, 1)); r.Header.Get(RequestIDHeader) != "body" {
			t.Errorf("%s: the request is named %q", got, r.Header.Get(RequestIDHeader))
		}
		for _, c := range []struct{ id, active string }{{"header", "false"}, {"body", "true"}, {"body", "false"}} {
			want := `{"method":"free_marked","success":` + c.active + `,"active":` + c.active + `}`
			if _, got := b.Route(h, "", `{"method":"mark_free","request_id":"`+c.id+`"}`); got != want {
				t.Errorf("%s: %s, want %s", c.id, got, want)
			}
		}
	})
}

// A request id comes back as it was given, or is refused: an id that a header changes on
// its way would name another request.
func TestRequestIDsThatCannotBeEchoedAreRefused(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		for id, want := range map[string]string{
			"a\nX-Blockyard-Quality: exact": "request_id: byte 1 is 0x0a", "a\u0000b": "byte 1 is 0x00", "caf\u00e9": "byte 3 is 0xc3",
			" a": "byte 0 is 0x20", "a ": "byte 1 is 0x20", "a\u007f": "byte 1 is 0x7f", strings.Repeat("x", 257): "request_id: 257 bytes are more than 256",
		} {
			name, err := json.Marshal(id)
			if err != nil {
				t.Fatal(err)
			}
			for _, body := range []string{routertest.NewBody(`,"request_id":`+string(name), 1), `{"method":"mark_free","request_id":` + string(name) + `}`} {
				if r, got := b.Route(h, "", body); r.StatusCode != http.StatusBadRequest || !strings.Contains(got, want) {
					t.Errorf("%q: %d %s, want %s", id, r.StatusCode, got, want)
				}
			}
		}
		if r, got := b.Route(h, "caf\u00e9", routertest.NewBody("", 1)); r.StatusCode != http.StatusBadRequest || !strings.Contains(got, RequestIDHeader) {
			t.Errorf("in the header: %d %s", r.StatusCode, got)
		}
		for _, id := range []string{"a b", "~!{}[]:;,\"/?=", strings.Repeat("x", 256)} {
			body, err := json.Marshal(id)
			if err != nil {
				t.Fatal(err)
			}
			if r, got := b.Route(h, "", routertest.NewBody(`,"request_id":`+string(body), 1)); r.Header.Get(RequestIDHeader) != id {
				t.Errorf("%q: %d %s, echoed as %q", id, r.StatusCode, got, r.Header.Get(RequestIDHeader))
			}
		}
		if n := b.Router.Stats().Requests.Load.Requests; n != 3 {
			t.Errorf("%d requests are booked, want those that were not refused", n)
		}
	})
}

// The router is ready while there is a worker to send requests to, and only then.
func TestReadyWhileItCanRoute(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		h := New(b.Router, Options{}).Handler()
		expect := func(when string, status int) {
			t.Helper()
			if r := routertest.Call(t, h, "GET", "/readyz", "", ""); r.StatusCode != status {
				t.Errorf("%s: %d %s, want %d", when, r.StatusCode, routertest.Text(t, r), status)
			}
			if r, got := b.Route(h, "", routertest.NewBody("", 1)); r.StatusCode != status {
				t.Errorf("%s: a request gets %d %s", when, r.StatusCode, got)
			}
		}
		expect("nobody is known", 503)
		b.Send(b.Publisher(12, kv.PoolOwner(7), 0).Announce())
		expect("a pool alone", 503)
		p := b.Publisher(11, sourcetest.WorkerOwner(1), 7)
		b.Send(p.Announce())
		expect("a worker", 200)
		b.Transport.Away.Store(true)
		b.Send(source.Frame{Kind: source.FrameDisconnected})
		b.Pass(time.Hour)
		expect("the transport is away", 200)
		b.Transport.Away.Store(false)
		b.Send(source.Frame{Kind: source.FrameConnected}, p.Goodbye())
		expect("the worker has gone", 503)
	})
}
