package command

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// plainServer answers as an inference server without an agent does, until dead is set.
func plainServer(t *testing.T, dead *atomic.Bool) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case dead.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/health":
		case r.URL.Path == "/v1/models":
			fmt.Fprint(w, `{"object":"list","data":[{"id":"tiny","object":"model","owned_by":"vllm","parent":null,"max_model_len":4096}]}`)
		case r.URL.Path == "/metrics":
			fmt.Fprint(w, `vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="512"} 1.0`+"\n")
		case r.URL.Path == "/v1/completions":
			if _, err := io.Copy(w, r.Body); err != nil {
				t.Error(err)
			}
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestAPlainServerIsAWorker: a server that only --worker names gets requests from the
// router, none while an operator drains it, and none when it fails.
func TestAPlainServerIsAWorker(t *testing.T) {
	withoutSettings(t)
	t.Setenv("NATS_SERVER", "")
	var dead atomic.Bool
	url := plainServer(t, &dead)
	c := settle(t, "--worker", url+",id=7,taint=x", "--worker", "http://127.0.0.1:1")
	sources, err := c.openSources(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	r, err := router.New(c.options("", zap.NewNop()), sources.Source)
	if err != nil {
		t.Fatal(err)
	}
	d, err := c.serverFlags.directory(r, sources, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(ctx) })
	g.Go(func() error { return d.Run(ctx) })
	defer func() {
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		if err := sources.Close(); err != nil {
			t.Error(err)
		}
	}()
	served := api.New(r, api.Options{Servers: d})
	call := func(h http.Handler, method, path string) (int, string) {
		w := httptest.NewRecorder()
		q := httptest.NewRequest(method, "http://localhost"+path, http.NoBody)
		h.ServeHTTP(w, q)
		return w.Code, w.Body.String()
	}
	state := func() string { w, _ := d.Worker(7); return w.State.String() }
	routed := func() bool {
		m, err := r.FindBestMatch(ctx, &router.Request{Model: "tiny", Tokens: []uint32{1, 2, 3}})
		return err == nil && m.Worker.ID == 7
	}
	wait := func(what string, holds func() bool) {
		t.Helper()
		waittest.Pass(t, func() string {
			if holds() {
				return ""
			}
			_, servers := call(served.Handler(), "GET", "/v1/servers")
			return what + ": " + servers
		})
	}
	// The router may know the worker before the directory has its next snapshot.
	wait("the server gets requests", func() bool { return routed() && state() == "ready" })
	if w := r.Workers()[0]; w.BlockSize != 16 || w.Card.DeviceBlocks != 512 || w.Card.Endpoint != url || w.Card.Taints != "x" {
		t.Errorf("worker %+v", w)
	}
	if code, text := call(served.Handler(), "GET", "/v1/servers"); code != http.StatusOK || !strings.Contains(text, `"state":"starting"`) ||
		!strings.Contains(text, fmt.Sprintf(`{"worker_id":7,"url":%q,"state":"ready"`, url)) {
		t.Errorf("servers: %d %s", code, text)
	}
	if code, text := call(served.Handler(), "POST", "/v1/workers/7/drain"); code != http.StatusForbidden {
		t.Errorf("clients drain: %d %s", code, text)
	}
	operators := served.ControlHandler()
	if code, text := call(operators, "POST", "/v1/workers/7/drain"); code != http.StatusOK || text != `{"draining":true,"requests":0,"worker_id":7}`+"\n" {
		t.Errorf("drain: %d %s", code, text)
	}
	wait("the drained server gets nothing", func() bool { return !routed() && state() == "draining" })
	for path, want := range map[string]int{"/v1/workers/8/drain": 404, "/v1/workers/x/drain": 400, "/v1/workers/7/undrain": 200} {
		if code, text := call(operators, "POST", path); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, text, want)
		}
	}
	wait("the server gets requests again", routed)
	dead.Store(true)
	wait("the dead server gets nothing", func() bool { return !routed() && state() == "unhealthy" })
}

// TestServerFlags: a wrong value names its flag.
func TestServerFlags(t *testing.T) {
	joined, err := registry.New(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer joined.Close()
	r, err := router.New(router.Options{}, joined)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for want, f := range map[string]serverFlags{
		"--worker-kubernetes: KUBERNETES_SERVICE_HOST": {Kubernetes: []string{"models/llama"}},
		"--worker: ":                    {Workers: []string{"a:8000"}},
		"--worker-dns: ":                {DNS: []string{"a"}, DNSEvery: time.Second},
		"--worker-dns: period: 0s":      {DNS: []string{"a:8000"}},
		"--worker-slow-start: -1s":      {Workers: []string{"http://a"}, SlowStart: -time.Second},
		"workers[1]: http://a is there": {Workers: []string{"http://a", "http://a"}},
	} {
		if _, err := f.directory(r, &routerSources{Source: joined}, zap.NewNop()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	for card, want := range map[string]string{"": workers.FromAgent, "http": workers.FromRegistration, "file": workers.FromFile, "dynamo": "dynamo"} {
		if got := workerSource(card); got != want {
			t.Errorf("%q: %q, want %q", card, got, want)
		}
	}
}
