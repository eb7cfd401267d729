package workers_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// sglang answers as an SGLang server does; info is its answer to path.
func sglang(path, info string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
		case "/v1/models":
			fmt.Fprint(w, `{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"sglang","root":"m","parent":null,"max_model_len":777}]}`)
		case path:
			fmt.Fprint(w, info)
		default:
			http.NotFound(w, r)
		}
	})
}

// TestSGLang: facts come from /server_info, or from its older name, and where events are from what
// the server makes of --kv-events-config, or from the setting itself.
func TestSGLang(t *testing.T) {
	const common = `"model_path":"x","page_size":64,"dp_size":2,"enable_cache_report":true,"disable_radix_cache":false,"disaggregation_mode":"prefill",
		"max_total_num_tokens":6400,"chunked_prefill_size":8192,"internal_states":[{}],"version":"0.5.16"`
	facts := workers.Facts{
		Engine: "sglang", Version: "0.5.16", BlockSize: 64, DeviceBlocks: 100, CachedTokens: workers.Yes, PrefixCaching: workers.Yes, BatchedTokens: 8192,
	}
	both := []workers.EventSource{{Endpoint: "tcp://a:5557", Topic: "kv"}, {Rank: 1, Endpoint: "tcp://a:5558", Topic: "kv"}}
	replayed := []workers.EventSource{
		{Endpoint: "tcp://a:5557", Replay: "tcp://a:6000", Topic: "kv"}, {Rank: 1, Endpoint: "tcp://a:5558", Replay: "tcp://a:6001", Topic: "kv"},
	}
	for name, c := range map[string]struct {
		path, info string
		change     func(*workers.Facts)
	}{
		"described": {"/server_info", `"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","block_size":64,"dp_size":2}`,
			func(f *workers.Facts) { f.Events = both }},
		"older path": {"/get_server_info", `"kv_events":{"publisher":"zmq","endpoint_host":"0.0.0.0","endpoint_port_base":5557,"topic":"kv","block_size":64,"dp_size":2}`,
			func(f *workers.Facts) { f.Events = both }},
		"replay port": {"/server_info", `"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"replay_endpoint_port_base":6000,"topic":"kv","block_size":64,"dp_size":2}`,
			func(f *workers.Facts) { f.Events = replayed }},
		"replay of the setting": {"/server_info", `"kv_events_config":"{\"publisher\":\"zmq\",\"replay_endpoint\":\"tcp://*:6000\"}",
			"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"kv","block_size":64,"dp_size":2}`,
			func(f *workers.Facts) { f.Events = replayed }},
		"setting alone": {"/server_info", `"kv_events_config":"{\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:5557\",\"replay_endpoint\":\"tcp://*:6000\",\"topic\":\"kv\"}"`,
			func(f *workers.Facts) { f.Events = replayed }},
		"default endpoint": {"/server_info", `"kv_events_config":"{\"publisher\":\"zmq\",\"topic\":\"kv\"}"`,
			func(f *workers.Facts) { f.Events = both }},
		"off": {"/server_info", `"kv_events_config":"{\"publisher\":\"null\"}","kv_events":null`, func(*workers.Facts) {}},
		// Under decode context parallelism a block is several pages. Of two versions one tells the page.
		"wide blocks": {"/server_info", `"dcp_size":4,"kv_events":{"publisher":"null","block_size":64}`,
			func(f *workers.Facts) { f.BlockSize, f.DeviceBlocks = 256, 25 }},
		"wide blocks told": {"/server_info", `"dcp_size":4,"kv_events":{"publisher":"null","block_size":256}`,
			func(f *workers.Facts) { f.BlockSize, f.DeviceBlocks = 256, 25 }},
		"pairs":              {"/server_info", `"speculative_algorithm":"EAGLE3"`, func(f *workers.Facts) { f.Pairs = true }},
		"other speculation":  {"/server_info", `"speculative_algorithm":"NGRAM"`, func(*workers.Facts) {}},
		"prompts in a piece": {"/server_info", `"chunked_prefill_size":-1`, func(f *workers.Facts) { f.BatchedTokens = 0 }},
		"huge block":         {"/server_info", `"dcp_size":9007199254740993`, func(f *workers.Facts) { f.BlockSize, f.DeviceBlocks = 0, 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, end := start(t, workers.Options{
					Specs:  []workers.Spec{spec(t, "http://a,id=1")},
					Client: &http.Client{Transport: &inProcess{hosts: map[string]http.Handler{"a": sglang(c.path, "{"+common+","+c.info+"}")}}},
				})
				defer end()
				settle()
				want := facts
				c.change(&want)
				w, _ := d.Worker(1)
				if diff := cmp.Diff(want, w.Facts); diff != "" || w.Ranks != 2 || w.Role != workers.RolePrefill || w.Models[0].MaxLen != 777 {
					t.Errorf("%s\n%+v", diff, w)
				}
			})
		})
	}
}

// TestSGLangIsFollowed: the router follows the events of a plain SGLang and knows how its blocks
// are hashed.
func TestSGLangIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &follower{}
		_, end := start(t, workers.Options{
			Specs: []workers.Spec{spec(t, "http://a,id=1")}, Follower: f,
			Client: &http.Client{Transport: &inProcess{hosts: map[string]http.Handler{"a": sglang("/server_info",
				`{"page_size":16,"chunked_prefill_size":2048,"speculative_algorithm":"EAGLE",
				"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"replay_endpoint_port_base":6000,"topic":"","block_size":16,"dp_size":1}}`)}}},
		})
		defer end()
		settle()
		want := []source.Engine{{
			Worker: 1, Model: "m", BlockSize: 16, Card: kvevent.ModelCard{Endpoint: "http://a", Ranks: 1, MaxBatchedTokens: 2048, Eagle: true},
			Ranks: []source.EngineRank{{Events: "tcp://a:5557", Replay: "tcp://a:6000"}},
		}}
		if diff := cmp.Diff(want, f.all()); diff != "" {
			t.Error(diff)
		}
	})
}
