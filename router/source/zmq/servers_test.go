package zmq

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/lab/engine/zmqpub"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// serveVLLM answers as the server of a plain vLLM does, whose engine is e.
func serveVLLM(t *testing.T, e *plainEngine) *httptest.Server {
	return serve(t, map[string]string{
		"/health":    "",
		"/version":   `{"version":"0.32.0"}`,
		"/v1/models": `{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm","parent":null,"max_model_len":4096}]}`,
		"/metrics":   fmt.Sprintf("vllm:cache_config_info{block_size=\"%d\",engine=\"0\",num_gpu_blocks=\"1000\"} 1.0\n", blockSize),
		"/kv_event_sources": fmt.Sprintf(`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":%q,"replay_endpoint":%q,"topic":""}}`,
			anyHost(e.pub.Events), anyHost(e.pub.Replay)),
	})
}

// serveSGLang answers as the server of a plain SGLang does, whose engine is e.
func serveSGLang(t *testing.T, e *plainEngine) *httptest.Server {
	config, err := json.Marshal(fmt.Sprintf(`{"publisher":"zmq","endpoint":%q,"replay_endpoint":%q}`, anyHost(e.pub.Events), anyHost(e.pub.Replay)))
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(e.pub.Events, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, map[string]string{
		"/health":    "",
		"/v1/models": `{"object":"list","data":[{"id":"m","object":"model","owned_by":"sglang","parent":null,"max_model_len":4096}]}`,
		"/server_info": fmt.Sprintf(`{"page_size":%d,"dp_size":1,"max_total_num_tokens":4000,"version":"0.5.16","kv_events_config":%s,
			"kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":%s,"topic":"","block_size":%d,"dp_size":1}}`, blockSize, config, port, blockSize),
	})
}

// anyHost returns an endpoint as servers tell theirs.
func anyHost(endpoint string) string { return strings.Replace(endpoint, "127.0.0.1", "*", 1) }

// serve answers paths.
func serve(t *testing.T, answers map[string]string) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	return server
}

// TestNamedServersAreFollowed: a directory that is given the URLs of a vLLM and an SGLang finds the
// engines' events, and the router then knows what both hold, although frames are lost. A server that
// goes away leaves.
func TestNamedServersAreFollowed(t *testing.T) {
	a := startEngine(t, 1, zmqpub.Options{})
	b := startEngine(t, 2, zmqpub.Options{Drop: zmqpub.ChooseDrops(3, 1, 2)})
	b.encode = appendSGLang
	b.next |= 1 << 63 // SGLang's hashes are signed
	servers := []*httptest.Server{serveVLLM(t, a), serveSGLang(t, b)}
	s := newSource(t, Options{})
	joined, err := registry.New(registry.Options{AnnounceEvery: 20 * time.Millisecond}, s)
	if err != nil {
		t.Fatal(err)
	}
	r := routertest.RunRouter(t, router.Options{}, joined)
	o := workers.Options{Registry: joined, Follower: s, ProbeEvery: 20 * time.Millisecond}
	for i, e := range []*plainEngine{a, b} {
		spec, err := workers.ParseSpec(servers[i].URL)
		if err != nil {
			t.Fatal(err)
		}
		o.Specs = append(o.Specs, spec)
		e.worker = 0 // the directory names it
	}
	d, err := workers.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := d.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	sourcetest.Eventually(t, "both servers are ready", func() bool {
		_, err := d.Resolve("m")
		return err == nil && len(d.Workers()) == 2 && len(r.Workers()) == 2 && r.Quality() == feed.Exact
	})
	for _, w := range d.Workers() {
		for i, e := range []*plainEngine{a, b} {
			if w.URL == servers[i].URL {
				e.worker = w.ID
			}
		}
	}
	rng := rand.New(rand.NewPCG(9, 9))
	for i, tokens := range prompts(rng, 60) {
		[]*plainEngine{a, b}[i%2].compute(tokens, "", "")
	}
	sourcetest.Eventually(t, "the blocks of both", func() bool { return agreed(r, a, b) && r.Quality() == feed.Exact })
	tokens := sourcetest.Tokens(90, 91, 92)
	b.compute(tokens, "", "")
	sourcetest.Eventually(t, "the new prompt is known", func() bool { return routertest.DeviceHits(r, tokens) == 3 })
	if m, err := r.FindBestMatch(t.Context(), &router.Request{Tokens: tokens}); err != nil || m.Worker != (kv.Worker{ID: b.worker}) {
		t.Errorf("the prompt goes to %s, want %d: %v", m.Worker, b.worker, err)
	}
	servers[1].Close()
	sourcetest.Eventually(t, "the closed server leaves", func() bool { return agreed(r, a) && len(r.Workers()) == 1 })
}
