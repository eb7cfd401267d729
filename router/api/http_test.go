package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

func TestRouteOverHTTP(t *testing.T) {
	routertest.OnBench(t, router.Options{Config: routertest.FirstOfEqual()}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		body := fmt.Sprintf(`{"method":"new","tokens":%s,"priority_jump":5.0,"lora_name":null}`, routertest.TokensJSON(sourcetest.Tokens(1, 2, 3)))
		for _, c := range []struct{ id, body, want string }{
			{"r1", body, `{"method":"new","worker_id":2,"dp_rank":0,"overlap_blocks":2}`},
			{"r1", `{"method":"mark_prefill"}`, `{"method":"prefill_marked","success":true}`},
			{"r2", `{"method":"mark_prefill"}`, `{"method":"prefill_marked","success":false}`},
			{"", `{"method":"mark_free","request_id":"r1"}`, `{"method":"free_marked","success":true,"active":true}`},
			{"r1", `{"method":"mark_free","request_id":""}`, `{"method":"free_marked","success":false,"active":false}`},
			{"", fmt.Sprintf(`{"method":"potential_loads","tokens":%s}`, routertest.TokensJSON(sourcetest.Tokens(1, 9))),
				`{"method":"potential_loads","loads":[{"worker_id":1,"dp_rank":0,"potential_prefill_tokens":5,"potential_decode_blocks":2},` +
					`{"worker_id":2,"dp_rank":0,"potential_prefill_tokens":4,"potential_decode_blocks":2}],"pending_count":0,"pending_isl_tokens":0}`},
		} {
			r := routertest.Call(t, h, "POST", "/v1/route", c.id, c.body)
			if got := routertest.Text(t, r); r.StatusCode != http.StatusOK || got != c.want {
				t.Errorf("%s: %d %s, want %s", c.body, r.StatusCode, got, c.want)
			}
			if q := r.Header.Get(QualityHeader); q != string(feed.Exact) {
				t.Errorf("%s: quality %q", c.body, q)
			}
		}
		// A request without an id gets one, under which it can be freed.
		r := routertest.Call(t, h, "POST", "/v1/route", "", body)
		if id := r.Header.Get(RequestIDHeader); id == "" || !b.Router.Free("", id) {
			t.Errorf("request id %q does not name the request", id)
		}
	})
}

func TestBadRequestsNameTheirField(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		h := New(b.Router, Options{}).Handler()
		fine := `{"method":"new","tokens":[1]}`
		if r := routertest.Call(t, h, "POST", "/v1/route", "a", fine); r.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("without workers: %d %s", r.StatusCode, routertest.Text(t, r))
		}
		routertest.TwoWorkers(b)
		if r := routertest.Call(t, h, "POST", "/v1/route", "a", fine); r.StatusCode != http.StatusOK {
			t.Errorf("a good request: %d %s", r.StatusCode, routertest.Text(t, r))
		}
		large := `{"method":"new","tokens":[1` + strings.Repeat(" ", maxBody) + `]}`
		for _, c := range []struct {
			id, body string
			status   int
			want     string
		}{
			{"a", fine, 409, "request is active already"},
			{"", `{"method":"mark_free"}`, 400, "request_id"},
			{"", `{"method":"mark_prefill","request_id":""}`, 400, "request_id"},
			{"", `{"method":"old"}`, 400, "method"},
			{"", `{}`, 400, "method"},
			{"", ``, 400, "body"},
			{"", `{"method":"new","tokens":[1]`, 400, "body"},
			{"", fine + fine, 400, "body"},
			{"", `{"method":"new"}`, 400, "tokens"},
			{"", `{"method":"new","tokens":[]}`, 400, "tokens"},
			{"", `{"method":"new","tokens":null}`, 400, "tokens"},
			{"", `{"method":"new","tokens":"abc"}`, 400, "tokens"},
			{"", `{"method":"new","tokens":[1,2,-3]}`, 400, "tokens[2]"},
			{"", `{"method":"new","tokens":[1,2.5]}`, 400, "tokens[1]"},
			{"", `{"method":"new","tokens":[1e3]}`, 400, "tokens[0]"},
			{"", `{"method":"new","tokens":[1,[2]]}`, 400, "tokens[1]"},
			{"", `{"method":"new","tokens":[4294967296]}`, 400, "tokens[0]"},
			{"", `{"method":"new","tokens":[1],"lora_name":7}`, 400, "lora_name"},
			{"", `{"method":"new","tokens":[1],"colour":7}`, 400, "colour"},
			{"", `{"method":"new","tokens":[1],"routing_constraints":{"required_taints":"x"}}`, 400, "required_taints"},
			{"", `{"method":"new","tokens":[1],"routing_constraints":{"colour":1}}`, 400, "colour"},
			{"", `{"method":"new","tokens":[1],"routing_constraints":{"required_taints":["x"]}}`, 503, "no worker has the required taints"},
			{"", `{"method":"new","tokens":[1],"block_mm_infos":[null,null]}`, 400, "block_mm_infos: 2 entries for 1 blocks"},
			{"", `{"method":"new","tokens":[1],"block_mm_infos":[{"mm_objects":[{"mm_hash":-1}]}]}`, 400, "mm_hash"},
			{"", `{"method":"new","tokens":[1],"router_config_override":{"colour":1}}`, 400, "router_config_override"},
			{"", `{"method":"new","tokens":[1],"router_config_override":{"router_temperature":-1}}`, 400, "router_temperature"},
			{"", `{"method":"new","tokens":[1],"router_config_override":{"objective":"fast"}}`, 400, `objective "fast": want balanced or ttft or throughput`},
			{"", `{"method":"new","tokens":[1],"router_config_override":{"objective":"ttft"}}`, 400, `objective "ttft": needs score price`},
			{"", `{"method":"new","tokens":[1],"expected_output_tokens":4294967295}`, 400, "expected_output_tokens"},
			{"", `{"method":"new","tokens":[1],"pinned_worker":{"worker_id":9}}`, 503, "no workers"},
			{"", `{"method":"new","tokens":[1],"pinned_worker":{"worker_id":1},"allowed_worker_ids":[2]}`, 400, "the pinned worker is not allowed"},
			{"", `{"method":"new","tokens":[1],"allowed_worker_ids":[9]}`, 503, "no workers"},
			{"a", `{"method":"output_block","decay_fraction":1.5}`, 400, "decay_fraction: 1.5 is not in 0..1"},
			{"", `{"method":"output_block"}`, 400, "request_id"},
			{"", `{"method":"overlap"}`, 400, "tokens"},
			{"", `{"method":"mark_free","request_id":"` + strings.Repeat("x", maxRequestID+1) + `"}`, 400, "request_id"},
			{strings.Repeat("x", maxRequestID+1), fine, 400, RequestIDHeader},
			{"", large, 413, "body: want at most 33554432 bytes"},
		} {
			r := routertest.Call(t, h, "POST", "/v1/route", c.id, c.body)
			var answer struct{ Error string }
			body := routertest.Text(t, r)
			if err := json.Unmarshal([]byte(body), &answer); err != nil {
				t.Errorf("%.60s: answer %q is not JSON: %v", c.body, body, err)
			}
			if r.StatusCode != c.status || !strings.Contains(answer.Error, c.want) {
				t.Errorf("%.60s: %d %q; want %d and an error that names %s", c.body, r.StatusCode, answer.Error, c.status, c.want)
			}
		}
		for _, c := range [][2]string{{"GET", "/v1/route"}, {"POST", "/v1/feeds"}} {
			if r := routertest.Call(t, h, c[0], c[1], "", ""); r.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", c[0], c[1], r.StatusCode)
			}
		}
	})
}

func FuzzDecodeRoute(f *testing.F) {
	f.Add([]byte(`{"method":"new","tokens":[1,2,3],"priority_jump":5.0}`))
	f.Add([]byte(`{"method":"mark_free","request_id":"a"}`))
	f.Add([]byte(`{"method":"new","tokens":[1],"block_mm_infos":[null,{"mm_objects":[{"mm_hash":7,"offsets":[[0,12]]}]}],"pinned_worker":{"worker_id":7,"dp_rank":1},"allowed_worker_ids":[7]}`))
	f.Add([]byte(`{"method":"new","tokens":[1],"routing_constraints":{"required_taints":["a"],"preferred_taints":{"b":0.5}},"router_config_override":{"router_temperature":0.5}}`))
	f.Add([]byte(`{"method":"new","tokens":[ 1 ,22, 4294967295 ]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		q, err := decodeRoute(bytes.NewReader(body))
		if err != nil {
			return
		}
		// What is accepted is what the standard decoder reads.
		var plain struct {
			Tokens []uint32 `json:"tokens"`
		}
		if err := json.Unmarshal(body, &plain); err != nil {
			t.Fatalf("accepted %q, which is not readable: %v", body, err)
		}
		q.query("id")
		if fmt.Sprint(plain.Tokens) != fmt.Sprint([]uint32(q.Tokens)) {
			t.Fatalf("%q: tokens %v, want %v", body, q.Tokens, plain.Tokens)
		}
	})
}

func TestInspectionOverHTTP(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		h := New(b.Router, Options{}).Handler()
		if r := routertest.Call(t, h, "GET", "/readyz", "", ""); r.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("ready without workers: %d", r.StatusCode)
		}
		for _, path := range []string{"/v1/workers", "/v1/feeds"} {
			if got := routertest.Text(t, routertest.Call(t, h, "GET", path, "", "")); got != "[]" {
				t.Errorf("%s of nothing: %s", path, got)
			}
		}
		routertest.TwoWorkers(b)
		namespace := strings.Repeat("0", 32)
		for path, want := range map[string]string{
			"/v1/workers": `[{"worker_id":1,"dp_rank":0,"pool":77,"namespace":"` + namespace + `","model":"m","block_size":4,"quality":"exact","source":"agent"},` +
				`{"worker_id":2,"dp_rank":0,"pool":77,"namespace":"` + namespace + `","model":"m","block_size":4,"quality":"exact","source":"agent"}]`,
			"/v1/feeds": `[{"publisher_id":"0000000000000011","owner":"worker 1/0","pool":77,"cursor":0,"announced":0,"health":"exact","gaps":0,"repaired":0,"divergences":0,"divergences_repaired":0,"digest_ok":true},` +
				`{"publisher_id":"0000000000000012","owner":"worker 2/0","pool":77,"cursor":1,"announced":0,"health":"exact","gaps":0,"repaired":0,"divergences":0,"divergences_repaired":0,"digest_ok":true},` +
				`{"publisher_id":"0000000000000013","owner":"pool 77","pool":0,"cursor":2,"announced":0,"health":"exact","gaps":0,"repaired":0,"divergences":0,"divergences_repaired":0,"digest_ok":true}]`,
			"/healthz": `{"status":"ok"}`,
			"/readyz":  `{"status":"ready"}`,
		} {
			r := routertest.Call(t, h, "GET", path, "", "")
			if got := routertest.Text(t, r); r.StatusCode != http.StatusOK || got != want {
				t.Errorf("%s: %d\n%s\nwant\n%s", path, r.StatusCode, got, want)
			}
		}
	})
}

func TestMetricsShowDecisionsAndState(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b)
		h := New(b.Router, Options{}).Handler()
		routertest.Call(t, h, "POST", "/v1/route", "r", fmt.Sprintf(`{"method":"new","tokens":%s}`, routertest.TokensJSON(sourcetest.Tokens(1, 2))))
		routertest.Call(t, h, "POST", "/v1/route", "r", `{"method":"mark_free"}`)
		routertest.Call(t, h, "POST", "/v1/route", "r", `{`)
		got := routertest.Text(t, routertest.Call(t, h, "GET", "/metrics", "", ""))
		for _, want := range []string{
			`blockyard_router_requests_total{method="new",quality="exact"} 1`,
			`blockyard_router_requests_total{method="mark_free",quality="exact"} 1`,
			`blockyard_router_failures_total{status="400"} 1`,
			`blockyard_router_decision_seconds_count 1`,
			`blockyard_router_input_tokens_total 8`,
			`blockyard_router_hit_blocks_total{tier="device"} 1`,
			`blockyard_router_hit_blocks_total{tier="host_pinned"} 1`,
			`blockyard_router_workers 2`,
			`blockyard_router_feeds_exact 3`,
			`blockyard_router_index_blocks 2`,
			`blockyard_router_index_memberships 4`,
			`blockyard_router_events_applied_total 3`,
			`blockyard_router_gaps_total 0`,
			`blockyard_router_requests_freed_total 1`,
		} {
			if !strings.Contains(got, want+"\n") {
				t.Errorf("metrics lack %q", want)
			}
		}
	})
}

// TestServeDrainsAndEnds: a request that is being read when the end comes is
// answered, and Serve returns without an error.
func TestServeDrainsAndEnds(t *testing.T) {
	r, err := router.New(router.Options{}, sourcetest.NewTransport())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- New(r, Options{}).Serve(ctx, listener) }()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	const expect = "POST /v1/route HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
	if _, err := io.WriteString(conn, expect); err != nil {
		t.Fatal(err)
	}
	// The interim answer says that the handler reads the body by now.
	interim := make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))
	if _, err := io.ReadFull(conn, interim); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.WriteString(conn, "{}"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 400")) {
		t.Errorf("answer after the end: %q, %v", answer, err)
	}
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
	if err := New(r, Options{}).Serve(t.Context(), listener); err == nil {
		t.Error("serving on a closed listener is no error")
	}
}
