package indexer

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/engine/zmqpub"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
	"github.com/blockyard-ai/blockyard/router/source/zmq"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// call sends one request and checks the answer's status and text.
func call(t *testing.T, h http.Handler, method, path, body string, status int, want string) {
	t.Helper()
	r := routertest.Call(t, h, method, path, "", body)
	if got := routertest.Text(t, r); r.StatusCode != status || !strings.Contains(got, want) {
		t.Errorf("%s %s %.100s: %d %s; want %d %s", method, path, body, r.StatusCode, got, status, want)
	}
}

// TestQueriesAnswerTokensByTier: the flat scores and the cumulative tiers of each worker, by
// tokens and by hashes of blocks.
func TestQueriesAnswerTokensByTier(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		routertest.TwoWorkers(b) // worker 2 has block 1; the pool of both has 1 and 2 in host memory
		h := New(Options{Router: b.Router}).Handler()
		const want = `{"scores":{"2":{"0":4}},"frequencies":[],"instances":{` +
			`"1":{"longest_matched":8,"gpu":0,"dp":{"0":0},"cpu":8,"disk":8},` +
			`"2":{"longest_matched":8,"gpu":4,"dp":{"0":4},"cpu":8,"disk":8}}}`
		tokens := sourcetest.Tokens(1, 2, 3)
		call(t, h, "POST", "/query", `{"model_name":"m","token_ids":`+routertest.TokensJSON(tokens)+`}`, 200, want)
		var hasher kv.Hasher
		var hashes []int64
		for _, l := range hasher.AppendLocals(nil, tokens, sourcetest.BlockSize, kv.LocalSeed("", "")) {
			hashes = append(hashes, int64(l))
		}
		text, err := json.Marshal(hashes)
		if err != nil {
			t.Fatal(err)
		}
		call(t, h, "POST", "/query_by_hash", fmt.Sprintf(`{"model_name":"m","block_hashes":%s}`, text), 200, want)
		call(t, h, "POST", "/query", `{"model_name":"m","cache_salt":"s","token_ids":`+routertest.TokensJSON(tokens)+`}`, 200,
			`{"scores":{},"frequencies":[],"instances":{}}`)
		call(t, h, "GET", "/workers?model_name=m", "", 200, `{"instance_id":2,"source":"agent","status":"active","model_name":"m","routing_group":"default","block_size":4,"endpoints":{},"listeners":{}}`)
		var dump map[string]struct {
			BlockSize uint32            `json:"block_size"`
			Events    []json.RawMessage `json:"events"`
		}
		r := routertest.Call(t, h, "GET", "/dump", "", "")
		if err := json.Unmarshal([]byte(routertest.Text(t, r)), &dump); err != nil || len(dump) != 1 || dump["m:default"].BlockSize != 4 || len(dump["m:default"].Events) == 0 {
			t.Errorf("dump %v, %v", dump, err)
		}
	})
}

// TestStatusCodes: those of Dynamo 1.6.1 for the same requests, recorded from its server.
func TestStatusCodes(t *testing.T) {
	routertest.OnBench(t, router.Options{}, func(b *routertest.Bench) {
		source, err := zmq.New(zmq.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := source.Close(); err != nil {
			t.Fatal(err)
		}
		routertest.TwoWorkers(b)
		h := New(Options{Router: b.Router, Follower: source}).Handler()
		large := `{"model_name":"m","token_ids":[1` + strings.Repeat(" ", maxQueryBody) + `]}`
		for _, c := range []struct {
			method, path, body string
			status             int
			want               string
		}{
			{"POST", "/register", `{"instance_id":8,"endpoint":"nonsense","model_name":"m","block_size":4}`, 400, "nonsense"},
			{"POST", "/register", `{"instance_id":8,"endpoint":"tcp://a:1","replay_endpoint":"nonsense","model_name":"m","block_size":4}`, 400, "nonsense"},
			{"POST", "/register", `{"model_name":"m"}`, 422, "instance_id"},
			{"POST", "/register", `xx`, 400, "body"},
			{"POST", "/register", `{"instance_id":"x"}`, 422, "instance_id"},
			{"POST", "/register", `{"instance_id":2,"endpoint":"tcp://a:1","model_name":"m","block_size":4}`, 409, "worker of the router already, from agent"},
			{"POST", "/register", `{"instance_id":8,"endpoint":"tcp://a:1","model_name":"m","block_size":4}`, 409, "closed"},
			{"POST", "/unregister", `{"instance_id":7,"model_name":"m"}`, 404, "instance 7 not found"},
			{"POST", "/unregister", `{"instance_id":7}`, 422, "model_name"},
			{"POST", "/query", `{"token_ids":[1,2,3,4,5],"model_name":"other"}`, 404, "no indexer for model=other routing_group=default"},
			{"POST", "/query", `{"token_ids":[1,2,3,4,5],"model_name":"m","routing_group":"acme"}`, 404, "no indexer for model=m routing_group=acme"},
			{"POST", "/query", `{"token_ids":[1,-2],"model_name":"m"}`, 422, "token_ids"},
			{"POST", "/query", `{"model_name":"m"}`, 422, "token_ids"},
			{"POST", "/query", large, 413, "8388608"},
			{"POST", "/query_by_hash", `{"block_hashes":[1],"model_name":"m","cache_salt":"x"}`, 400, "cache_salt is not accepted"},
			{"POST", "/query_by_hash", `{"block_hashes":[-1],"model_name":"m"}`, 200, `{"scores":{},"frequencies":[],"instances":{}}`},
			{"POST", "/query_by_hash", `{"block_hashes":[-1],"model_name":"other"}`, 404, "no indexer"},
			{"GET", "/workers?model_name=other", ``, 200, `[]`},
			{"GET", "/peers", ``, 200, `[]`},
			{"POST", "/register_peer", `{"url":"http://x:1"}`, 501, "no peers"},
			{"POST", "/deregister_peer", `{"url":"http://x:1"}`, 404, "peer not found"},
			{"POST", "/reopen_logs", ``, 200, `{"status":"ok"}`},
			{"GET", "/health", ``, 200, ``},
			{"GET", "/metrics", ``, 200, `blockyard_router_workers 2`},
			{"GET", "/register", ``, 405, ``},
			{"GET", "/nothing", ``, 404, ``},
		} {
			call(t, h, c.method, c.path, c.body, c.status, c.want)
		}
		call(t, New(Options{Router: b.Router}).Handler(), "POST", "/register", `{"instance_id":8,"endpoint":"tcp://a:1","model_name":"m","block_size":4}`, 503, "use_kv_events")
		cross := httptest.NewRequest("POST", "/register", strings.NewReader(`{}`))
		cross.Header.Set("Sec-Fetch-Site", "cross-site")
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, cross); w.Code != http.StatusForbidden {
			t.Errorf("another site's page: %d", w.Code)
		}
	})
}

// TestRegisteredEnginesAreFollowed: an engine's events arrive in queries, a second rank joins,
// and the end of the registration ends both.
func TestRegisteredEnginesAreFollowed(t *testing.T) {
	pub, err := zmqpub.New(zmqpub.Options{BufferSteps: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	source, err := zmq.New(zmq.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	r, err := router.New(router.Options{}, source)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer cancel()
	h := New(Options{Router: r, Follower: source}).Handler()
	register := func(rank int, more string) string {
		return fmt.Sprintf(`{"instance_id":7,"endpoint":%q,"replay_endpoint":%q,"model_name":"m","block_size":4,"dp_rank":%d%s}`, pub.Events, pub.Replay, rank, more)
	}
	call(t, h, "POST", "/register", register(0, `,"tenant_id":"t","additional_salt":"x"`), 201, `{"status":"ok"}`)
	call(t, h, "POST", "/query", `{"token_ids":[1,2,3,4],"model_name":"m"}`, 200, `{"scores":{},"frequencies":[],"instances":{}}`)
	call(t, h, "POST", "/register", register(0, ``), 409, "instance 7 dp_rank 0 already registered")
	call(t, h, "POST", "/register", register(1, `,"routing_group":"acme"`), 409, "already registered for model=m routing_group=default")
	call(t, h, "POST", "/register", strings.Replace(register(1, ``), `"block_size":4`, `"block_size":8`, 1), 409, "existing=4, requested=8")
	batch := engineevent.Batch{Timestamp: 1, Events: []engineevent.Event{{Kind: kvevent.Stored, BlockSize: 4,
		Tokens: []uint32{1, 2, 3, 4, 5, 6, 7, 8}, BlockHashes: []kv.EngineHash{11, 12}, Medium: "GPU", Group: engineevent.NoGroup}}}
	if !pub.Publish(engineevent.AppendBatch(nil, &batch)) {
		t.Fatal("the engine is closed")
	}
	eventually := func(what, method, path, body, want string) {
		t.Helper()
		sourcetest.Eventually(t, what, func() bool {
			return strings.Contains(routertest.Text(t, routertest.Call(t, h, method, path, "", body)), want)
		})
	}
	const query = `{"token_ids":[1,2,3,4,5,6,7,8,9],"model_name":"m"}`
	eventually("the blocks arrive", "POST", "/query", query, `{"scores":{"7":{"0":8}},"frequencies":[],"instances":{"7":{"longest_matched":8,"gpu":8,"dp":{"0":8},"cpu":8,"disk":8}}}`)
	eventually("the listener is active", "GET", "/workers", "", `"listeners":{"0":{"endpoint":"`+pub.Events+`","status":"active"}}`)
	call(t, h, "POST", "/register", register(1, ``), 201, `{"status":"ok"}`)
	eventually("both ranks are followed", "POST", "/query", query, `"dp":{"0":8,"1":8}`)
	call(t, h, "POST", "/unregister", `{"instance_id":7,"model_name":"m","routing_group":"default","dp_rank":1}`, 200, `{"status":"ok"}`)
	call(t, h, "POST", "/unregister", `{"instance_id":7,"model_name":"m","routing_group":"default","dp_rank":1}`, 404, "dp_rank 1 not found")
	call(t, h, "POST", "/unregister", `{"instance_id":7,"model_name":"m","routing_group":"acme"}`, 404, "is registered for model=m routing_group=default")
	call(t, h, "POST", "/unregister", `{"instance_id":7,"model_name":"m"}`, 200, `{"status":"ok"}`)
	eventually("the instance leaves", "GET", "/workers", "", `[]`)
}
