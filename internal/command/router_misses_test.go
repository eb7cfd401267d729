package command

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// missWorld is a router process before two worker servers with one pool, whose events come over NATS.
type missWorld struct {
	t              *testing.T
	router         *program
	one, two, pool *sourcetest.WirePublisher

	mu sync.Mutex
	// computed happens while a worker computes a prompt. It returns the cached tokens that the worker reports.
	computed func() int
}

const missCluster = "misses"

func newMissWorld(t *testing.T) *missWorld {
	w := &missWorld{t: t}
	nats := sourcetest.StartServer(t).ClientURL()
	w.router = startProgram(t, "router", "--nats", nats, "--cluster", missCluster, "--http", "127.0.0.1:0", "--http-host", "127.0.0.1", "--http-port", "0",
		"--worker", w.server()+",id=1", "--worker", w.server()+",id=2")
	w.one, w.two, w.pool = w.publisher(nats, 0x11, sourcetest.WorkerOwner(1), 77), w.publisher(nats, 0x12, sourcetest.WorkerOwner(2), 77), w.publisher(nats, 0x13, kv.PoolOwner(77), 0)
	all := []*sourcetest.WirePublisher{w.one, w.two, w.pool}
	for _, p := range all {
		w.say(p, nil)
	}
	w.announce(all)
	waittest.Pass(t, func() string {
		return lacks(w.get("door", "/health")+w.get("http", "/v1/servers"), `"worker_id":1`, `"worker_id":2`)
	})
	return w
}

// announce has publishers announce themselves each second until the test ends, however slow the machine is.
func (w *missWorld) announce(all []*sourcetest.WirePublisher) {
	var announcing sync.WaitGroup
	stop := make(chan struct{})
	w.t.Cleanup(func() { close(stop); announcing.Wait() })
	announcing.Go(func() {
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-tick.C:
				for _, p := range all {
					p.SendAnnouncement(missCluster)
				}
			case <-stop:
				tick.Stop()
				return
			}
		}
	})
}

// server starts a worker server that computes prompts as w.computed says.
func (w *missWorld) server() string {
	s := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
		case "/v1/models":
			fmt.Fprint(out, `{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm","parent":null,"max_model_len":4096}]}`)
		case "/metrics":
			fmt.Fprint(out, `vllm:cache_config_info{block_size="4",enable_prefix_caching="True",engine="0",num_gpu_blocks="512"} 1.0`+"\n")
		case "/v1/completions":
			var body struct{ Prompt []uint32 }
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				w.t.Error(err)
			}
			w.mu.Lock()
			cached := w.computed()
			w.mu.Unlock()
			out.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(out, `{"choices":[{"text":"x"}],"usage":{"prompt_tokens":%d,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%d}}}`, len(body.Prompt), cached)
		default:
			http.NotFound(out, r)
		}
	}))
	w.t.Cleanup(s.Close)
	return s.URL
}

func (w *missWorld) publisher(nats string, id uint64, owner kv.Owner, pool uint64) *sourcetest.WirePublisher {
	return sourcetest.NewWirePublisher(w.t, nats, missCluster, sourcetest.NewPublisher(id, owner, pool))
}

// say publishes an event, unless it is nil, and waits until the router has applied it.
func (w *missWorld) say(p *sourcetest.WirePublisher, event []byte) {
	w.t.Helper()
	if event != nil {
		p.Publish(kvevent.EventsSubject(missCluster, p.Meta.PublisherID), event)
	}
	p.SendAnnouncement(missCluster)
	announced, err := kvevent.DecodeAnnouncement(p.Announcement())
	if err != nil {
		w.t.Fatal(err)
	}
	want := []string{fmt.Sprintf(`"publisher_id":"%016x"`, p.Meta.PublisherID), fmt.Sprintf(`"cursor":%d,`, announced.LastEventID)}
	waittest.Pass(w.t, func() string {
		for _, feed := range strings.SplitAfter(w.get("http", "/v1/feeds"), "},") {
			if lacks(feed, want...) == "" && strings.Contains(feed, `"health":"exact"`) {
				return ""
			}
		}
		p.SendAnnouncement(missCluster)
		return "the router has not applied the events of " + p.Meta.Owner.String()
	})
}

// changes publishes that an owner has, or no longer has, the blocks of a prompt. late is the age of the message.
func (w *missWorld) changes(p *sourcetest.WirePublisher, kind kvevent.Kind, t kv.Tier, prompt []uint32, late time.Duration) {
	w.t.Helper()
	p.PublishedAt = uint64(time.Now().Add(-late).UnixMilli())
	w.say(p, p.Add(kind, t, prompt[:12], 0))
}

func (w *missWorld) get(name, path string) string {
	w.t.Helper()
	return w.read(http.Get("http://" + w.router.address(name) + path))
}

func (w *missWorld) read(answer *http.Response, err error) string {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

// route calls a method of /v1/route with a prompt and further fields.
func (w *missWorld) route(method string, prompt []uint32, more string) string {
	w.t.Helper()
	body := fmt.Sprintf(`{"method":%q,"tokens":%s%s}`, method, routertest.TokensJSON(prompt), more)
	return w.read(http.Post("http://"+w.router.address("http")+"/v1/route", "application/json", strings.NewReader(body)))
}

// asks sends a prompt through the front door, to worker 1 if pinned. The worker reports cached tokens after computed.
func (w *missWorld) asks(id string, prompt []uint32, pinned bool, cached int, computed func()) {
	w.t.Helper()
	w.mu.Lock()
	w.computed = func() int { computed(); return cached }
	w.mu.Unlock()
	body := fmt.Sprintf(`{"model":"m","prompt":%s,"max_tokens":2}`, routertest.TokensJSON(prompt))
	waittest.Pass(w.t, func() string { // a server whose publisher was just heard of is asked once more, and gets no requests meanwhile
		r, err := http.NewRequest(http.MethodPost, "http://"+w.router.address("door")+"/v1/completions", strings.NewReader(body))
		if err != nil {
			w.t.Fatal(err)
		}
		r.Header.Set("X-Request-Id", id)
		if pinned {
			r.Header.Set("X-Blockyard-Pin-Worker", "1/0")
		}
		switch text := w.read(http.DefaultClient.Do(r)); {
		case strings.Contains(text, "cached_tokens"):
			return ""
		case !strings.Contains(text, `"no_workers"`):
			w.t.Fatalf("%s: %s", id, text)
		}
		return id + ": no worker is ready"
	})
}

// inspect returns what the process "blockyard inspect misses" prints about the router.
func (w *missWorld) inspect() string {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	c := exec.Command(self, "inspect", "misses", "http://"+w.router.address("http"))
	c.Env = append(os.Environ(), mainVariable+"=1", "GORACE=atexit_sleep_ms=0")
	text, err := c.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%v: %s", err, text)
	}
	return string(text)
}

// shownMiss is a cause that is injected at a router process. inspected is what a line of "inspect misses" says of the request, and
// explained what explain says before it; empty for a cause that comes later.
type shownMiss struct {
	name, counter        string
	inject               func(w *missWorld, id string, prompt []uint32)
	inspected, explained string
}

func shownMisses() []shownMiss {
	nothing := func() {}
	return []shownMiss{
		{"new", "new_content", func(w *missWorld, id string, p []uint32) { w.asks(id, p, true, 0, nothing) },
			`12 new_content; 1 last_block`, `{"cause":"new_content","tokens":12}`},
		{"elsewhere", "routed_elsewhere", func(w *missWorld, id string, p []uint32) {
			w.changes(w.two, kvevent.Stored, kv.TierDevice, p, 0)
			w.route("add_request", make([]uint32, 4000), `,"request_id":"load","worker":{"worker_id":2}`)
			w.asks(id, p, false, 0, nothing)
		}, `12 routed_elsewhere \(worker 2/0\); 1 last_block`, `{"cause":"routed_elsewhere","tokens":12,"owner":"worker 2/0"`},
		{"evicted", "evicted", func(w *missWorld, id string, p []uint32) {
			w.changes(w.pool, kvevent.Stored, kv.TierDisk, p, 0)
			w.changes(w.pool, kvevent.Removed, kv.TierDisk, p, 0)
			w.asks(id, p, true, 0, nothing)
		}, `12 evicted \(pool 77, disk(, \S+ ago)?\); 1 last_block`, `{"cause":"evicted","tokens":12,"owner":"pool 77","tier":"disk"`},
		{"slow", "tier_slow", func(w *missWorld, id string, p []uint32) {
			w.changes(w.pool, kvevent.Stored, kv.TierHost, p, 0)
			w.asks(id, p, true, 0, nothing)
		}, `12 tier_slow \(pool 77, host_pinned\); 1 last_block`, ""},
		{"behind", "index_behind", func(w *missWorld, id string, p []uint32) {
			w.changes(w.one, kvevent.Stored, kv.TierDevice, p, 0)
			w.asks(id, p, true, 0, func() { w.changes(w.one, kvevent.Removed, kv.TierDevice, p, time.Hour) })
		}, `12 index_behind \(worker 1/0, device, by 1m\S+\); 1 last_block`, ""},
		{"differ", "tokens_differ", func(w *missWorld, id string, p []uint32) {
			w.changes(w.one, kvevent.Stored, kv.TierDevice, p, 0)
			w.asks(id, p, true, 0, nothing)
		}, `12 tokens_differ \(worker 1/0\); 1 last_block`, ""},
		{"restarted", "worker_restarted", func(w *missWorld, id string, p []uint32) {
			w.changes(w.two, kvevent.Stored, kv.TierDevice, p, 0)
			w.say(w.two, w.two.Clear().Data)
			w.asks(id, p, true, 0, nothing)
		}, `12 worker_restarted \(worker 2/0, device(, \S+ ago)?\); 1 last_block`, `{"cause":"worker_restarted","tokens":12,"owner":"worker 2/0"`},
	}
}

// TestEveryCauseIsShown: each cause that a router process sees is in the output of "inspect misses", in the counters, and in explain
// when it is known before the request.
func TestEveryCauseIsShown(t *testing.T) {
	withoutSettings(t)
	if testing.Short() {
		t.Skip("starts processes")
	}
	w, all := newMissWorld(t), shownMisses()
	for i, c := range all {
		first := uint32(100*i + 10)
		prompt := append(sourcetest.Tokens(first, first+1, first+2), 7)
		c.inject(w, c.name, prompt)
		if text := w.route("explain", prompt, `,"pinned_worker":{"worker_id":1,"dp_rank":0}`); !strings.Contains(text, c.explained) {
			t.Errorf("%s: explain lacks %s: %s", c.name, c.explained, text)
		}
	}
	waittest.Pass(t, func() string {
		shown := w.inspect()
		for _, c := range all {
			if !regexp.MustCompile(`(?m)^` + c.name + ` .* ` + c.inspected + `$`).MatchString(shown) {
				return fmt.Sprintf("inspect misses lacks %s with %s:\n%s", c.name, c.inspected, shown)
			}
		}
		return ""
	})
	shown, counted := w.inspect(), w.get("http", "/metrics")
	for _, c := range all {
		if !regexp.MustCompile(`missed tokens since the start: .*\b` + c.counter + ` 12\b`).MatchString(shown) {
			t.Errorf("the sums of inspect misses lack 12 tokens of %s:\n%s", c.counter, shown)
		}
		if !regexp.MustCompile(`(?m)^blockyard_frontend_missed_tokens_total\{cause="` + c.counter + `",.*\} 12$`).MatchString(counted) {
			t.Errorf("the counters lack 12 tokens of %s", c.counter)
		}
	}
	w.router.stop()
}
