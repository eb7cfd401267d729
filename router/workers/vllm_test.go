package workers_test

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/registry"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// cacheConfigLine is a line of the metrics of vLLM 0.32, as served.
const cacheConfigLine = `vllm:cache_config_info{_block_size_resolved="True",block_size="%d",cache_dtype="auto",` +
	`cache_hit_alignment_tokens="None",effective_attention_block_size="32",enable_mamba_shared_prefix_checkpoint="False",` +
	`enable_prefix_caching="%s",engine="%d",gpu_memory_utilization="0.92",hash_block_size="None",is_attention_free="False",` +
	`kv_cache_dtype_skip_layers="[]",kv_cache_layout="None",kv_cache_max_concurrency="4.0",kv_cache_memory_bytes="1073741824",` +
	`kv_cache_size_tokens="16384",kv_offloading_backend="native",num_cpu_blocks="None",num_gpu_blocks="%d",` +
	`num_gpu_blocks_override="512",prefix_caching_hash_algo="sha256_cbor",sliding_window="None",user_specified_block_size="True"} 1.0` + "\n"

// vllm answers as vLLM 0.32 does. Its fields may change while it serves, under mu.
type vllm struct {
	*httptest.Server
	mu sync.Mutex
	// health is the status of /health, key the API key that is asked for.
	health int
	key    string
	// models are bodies of cards, metrics the lines of /metrics.
	models  []string
	metrics string
	sources string
	render  int
}

func card(id, parent string, maxLen int) string {
	p, length := "null", "null"
	if parent != "" {
		p = `"` + parent + `"`
	}
	if maxLen > 0 {
		length = fmt.Sprint(maxLen)
	}
	return fmt.Sprintf(`{"id":%q,"object":"model","created":1795446138,"owned_by":"vllm","root":"/models/x","parent":%s,"max_model_len":%s,`+
		`"permission":[{"id":"modelperm-94a35345eb81f54a","object":"model_permission","allow_sampling":true,"organization":"*","group":null}]}`, id, p, length)
}

// newVLLM returns a server with one model; change adjusts it before it serves.
func newVLLM(t *testing.T, change func(*vllm)) *vllm {
	t.Helper()
	v := &vllm{
		health: 200, models: []string{card("tiny", "", 4096)}, metrics: fmt.Sprintf(cacheConfigLine, 32, "True", 0, 512),
		sources: `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:20381","replay_endpoint":"tcp://*:20481",` +
			`"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv-events"}}`,
		render: http.StatusForbidden,
	}
	if change != nil {
		change(v)
	}
	v.Server = httptest.NewServer(v)
	t.Cleanup(v.Close)
	return v
}

// set changes the server while it serves.
func (v *vllm) set(change func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change()
}

// ServeHTTP implements http.Handler.
func (v *vllm) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.key != "" && strings.HasPrefix(r.URL.Path, "/v1") && r.Header.Get("Authorization") != "Bearer "+v.key {
		http.Error(w, `{"error":"Unauthorized"}`, http.StatusUnauthorized)
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /health":
		w.WriteHeader(v.health)
	case "GET /v1/models":
		fmt.Fprintf(w, `{"object":"list","data":[%s]}`, strings.Join(v.models, ","))
	case "GET /version":
		fmt.Fprint(w, `{"version":"0.32.0"}`)
	case "GET /metrics":
		fmt.Fprint(w, "# HELP python_gc_objects_collected_total Objects collected during gc\n# TYPE python_gc_objects_collected_total counter\n"+
			`python_gc_objects_collected_total{generation="0"} 12.0`+"\n"+
			"# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n# TYPE vllm:cache_config_info gauge\n"+v.metrics)
	case "GET /kv_event_sources":
		fmt.Fprint(w, v.sources)
	case "POST /tokenize":
		http.Error(w, `{"error":{"message":"2 validation errors","type":"Bad Request","param":"body.prompt","code":400}}`, http.StatusBadRequest)
	case "POST /v1/chat/completions/render":
		http.Error(w, `{"error":{"message":"Scale-out endpoints are disabled.","type":"PermissionDeniedError","param":null,"code":403}}`, v.render)
	default:
		http.Error(w, `{"detail":"Not Found"}`, http.StatusNotFound)
	}
}

// recorder notes the registrations of a directory.
type recorder struct {
	mu    sync.Mutex
	alive map[uint64]registry.Registration
	calls int
	fail  error
}

// Register implements workers.Registry.
func (r *recorder) Register(g *registry.Registration, ttl time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := g.Validate(); err != nil {
		return err
	}
	if r.fail != nil {
		return r.fail
	}
	r.calls++
	if r.alive == nil {
		r.alive = make(map[uint64]registry.Registration)
	}
	r.alive[g.WorkerID] = *g
	return nil
}

// Unregister implements workers.Registry.
func (r *recorder) Unregister(worker uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.alive[worker]
	delete(r.alive, worker)
	return ok
}

// AnnounceSoon implements workers.Registry.
func (*recorder) AnnounceSoon() {}

// all returns the registrations that hold.
func (r *recorder) all() map[uint64]registry.Registration {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[uint64]registry.Registration)
	for id, g := range r.alive {
		out[id] = g
	}
	return out
}

// run runs a directory until the test ends.
func run(t *testing.T, o workers.Options) *workers.Directory {
	t.Helper()
	o.ProbeEvery = cmp.Or(o.ProbeEvery, 20*time.Millisecond)
	d, err := workers.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return d
}

// eventually waits until a condition holds of the directory.
func eventually(t *testing.T, d *workers.Directory, what string, holds func() bool) {
	t.Helper()
	waittest.Pass(t, func() string {
		if holds() {
			return ""
		}
		return fmt.Sprintf("%s; workers %+v", what, d.Workers())
	})
}

// ready reports whether n workers are ready.
func ready(d *workers.Directory, n int) bool {
	have := 0
	for _, w := range d.Workers() {
		if w.State == workers.Ready {
			have++
		}
	}
	return have == n
}

func spec(t *testing.T, text string) workers.Spec {
	t.Helper()
	s, err := workers.ParseSpec(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ids(all map[kv.WorkerID]struct{}) int { return len(all) }

// follower is a workers.Follower that remembers what is followed.
type follower struct {
	mu       sync.Mutex
	followed map[kv.WorkerID]source.Engine
	fail     error
}

// Follow implements workers.Follower.
func (f *follower) Follow(e source.Engine) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	if f.followed == nil {
		f.followed = make(map[kv.WorkerID]source.Engine)
	}
	f.followed[e.Worker] = e
	return nil
}

// Unfollow implements workers.Follower.
func (f *follower) Unfollow(w kv.WorkerID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.followed, w)
}

// all returns the engines that are followed.
func (f *follower) all() []source.Engine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.followed))
}

func sorted(all []string) string {
	slices.Sort(all)
	return strings.Join(all, " ")
}
