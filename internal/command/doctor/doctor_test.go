package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

const (
	healthyAgent = `{"node":"n1","sessions":1,
	"streams":[{"owner":"worker 7/0","publisher_id":"0a","health":"exact","dropped":{},"rank":{"frames":5,"lost":0,"bad_events":0,"replay_failures":0}},
		{"owner":"pool 9","publisher_id":"0b","health":"exact","dropped":{}}],
	"pools":[{"pool":9,"model":"tiny","namespace":"aa","block_size":32,"sessions":1,"disk_breaker_open":false,"disk_read_only":false,"corrupt_reads":0,"corrupt_host":0,"grow_errors":0,"grants_overdue":0}],
	"connectors":[{"worker":"7","rank":0,"role":"scheduler","connected":1,"connector":"blockyard 0.2.0","stored_blocks":3,"failed_loads":0,"errors":0}],
	"engines":{"denied":0,"refused":0,"panics":0,"former_stuck":0},
	"outputs":{"zmq_failed":0,"dynamo_failed":0,"checkpoints_failed":0,"dynamo":{"rival_sources":0}}}`
	healthyFeeds = `[{"publisher_id":"0a","owner":"worker 7/0","cursor":3,"announced":3,"health":"exact","digest_ok":true},
		{"publisher_id":"0b","owner":"pool 9","cursor":1,"announced":1,"health":"exact","digest_ok":true}]`
	healthyWorkers = `[{"worker_id":7,"dp_rank":0,"model":"tiny","block_size":32,"quality":"exact"}]`
	healthyServers = `[{"url":"http://a:8000","state":"ready"}]`
	healthyRouters = `[{"url":"http://n1:9400","connected":true}]`
	healthyBuild   = `blockyard_build_info{goversion="go1.26.0",revision="unknown",version="v0.2.0"} 1` + "\n"
	healthyMetrics = `vllm:cache_config_info{block_size="32",enable_prefix_caching="True",engine="0",num_gpu_blocks="512"} 1.0` + "\n" +
		`vllm:blockyard_connected{engine="0",model_name="tiny"} 1.0` + "\n"
)

// yard is a node, an agent, an engine, a NATS server and a router in which nothing is wrong. A test
// changes what it answers before doctor asks.
type yard struct {
	t   *testing.T
	c   Command
	dir string
	// agent, router and engine are the answers by path; a path without one is 404.
	agent, router, engine map[string]string
	// refusal is sent to whoever connects to the socket.
	refusal *proto.Error
	// cluster is where an agent announces itself on NATS.
	cluster string
	login   func(*server.Options)
	events  net.Listener
	door    fakeDoor
	before  func() // runs before doctor does
	inside  func(run func())
}

func newYard(t *testing.T) *yard {
	t.Helper()
	dir, err := os.MkdirTemp("", "by") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	y := &yard{t: t, dir: dir, cluster: "default", events: listen(t), inside: func(run func()) { run() }}
	port := y.events.Addr().(*net.TCPAddr).Port
	y.agent = map[string]string{"/v1/stats": healthyAgent, "/readyz": "ready\n", "/metrics": healthyBuild}
	y.door = healthyDoor()
	y.router = map[string]string{"/v1/feeds": healthyFeeds, "/v1/workers": healthyWorkers, "/v1/servers": healthyServers, "/v1/agents": healthyRouters,
		"/v1/tokens": `{"tokens":[1,2,3],"exact":true}`, "/v1/route": healthyOverlap, "/metrics": healthyBuild}
	y.engine = map[string]string{
		"/health": "", "/v1/models": `{"data":[{"id":"tiny","owned_by":"vllm","max_model_len":4096}]}`, "/version": `{"version":"0.32.0"}`, "/metrics": healthyMetrics,
		"/kv_event_sources": fmt.Sprintf(`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d","topic":""}}`, port, port),
		"/tokenize":         `{"tokens":[1,2,3],"count":3}`,
	}
	y.c = Command{Socket: filepath.Join(dir, "agent.sock"), HostDir: "/dev/shm/blockyard-doctor-test", DiskDir: dir, Cluster: "default",
		Canary: true, Timeout: time.Minute, root: "/", silence: time.Minute, refusal: time.Millisecond}
	return y
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// serve answers requests by path.
func (y *yard) serve(answers map[string]string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := answers[r.URL.Path]
		var asked map[string]any
		switch {
		case !ok:
			http.NotFound(w, r)
		case r.URL.Path == "/tokenize" && (json.NewDecoder(r.Body).Decode(&asked) != nil || asked["prompt"] == nil):
			w.WriteHeader(http.StatusBadRequest)
		case strings.HasPrefix(body, "503"):
			http.Error(w, body, http.StatusServiceUnavailable)
		default:
			fmt.Fprint(w, body)
		}
	}))
	y.t.Cleanup(s.Close)
	return s.URL
}

// serveSocket accepts connections as an agent does.
func (y *yard) serveSocket() {
	l, err := net.ListenUnix(proto.Network, &net.UnixAddr{Name: y.c.Socket, Net: proto.Network})
	if err != nil {
		y.t.Fatal(err)
	}
	y.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			conn := proto.NewConn(c, 0)
			if y.refusal != nil {
				_ = conn.Send(proto.TypeError, 0, y.refusal, nil)
			}
			_, _ = conn.Receive() // until doctor leaves
			conn.Close()
		}
	}()
}

// serveNATS starts a server on which an agent announces itself again and again.
func (y *yard) serveNATS() {
	s := sourcetest.StartServer(y.t, func(o *server.Options) {
		if y.login != nil {
			y.login(o)
		}
	})
	y.c.NATS = s.ClientURL()
	if y.login != nil {
		return
	}
	conn, err := nats.Connect(s.ClientURL())
	if err != nil {
		y.t.Fatal(err)
	}
	ticker, done := time.NewTicker(10*time.Millisecond), make(chan struct{})
	go func() {
		for {
			select {
			case <-ticker.C:
				_ = conn.Publish(kvevent.AnnounceSubject(y.cluster, 1), kvevent.AppendAnnouncement(nil, &kvevent.Announcement{PublisherID: 1}))
			case <-done:
				return
			}
		}
	}()
	y.t.Cleanup(func() { ticker.Stop(); close(done); conn.Close() })
}

// diagnose runs doctor on the yard and returns the causes that it found, sorted.
func (y *yard) diagnose() (ids []string, report string) {
	y.t.Helper()
	set := func(field *string, answers map[string]string) {
		if *field == "" {
			*field = y.serve(answers)
		}
	}
	set(&y.c.Agent, y.agent)
	set(&y.c.Router, y.router)
	if y.c.Door == "" {
		y.c.Door = y.serveDoor()
	}
	if y.c.Engines == nil {
		y.c.Engines = []string{y.serve(y.engine)}
	}
	if y.c.NATS == "" {
		y.serveNATS()
	}
	if _, err := os.Stat(y.c.Socket); errors.Is(err, os.ErrNotExist) && y.before == nil {
		y.serveSocket()
	}
	if y.before != nil {
		y.before()
	}
	if err := y.c.Validate(); err != nil {
		y.t.Fatal(err)
	}
	var out bytes.Buffer
	var err error
	y.inside(func() { err = y.c.Run(y.t.Context(), &out) })
	var v Verdict
	if err != nil && !errors.As(err, &v) {
		y.t.Fatal(err)
	}
	for _, f := range y.c.findings {
		ids = append(ids, f.ID)
		if f.Subject == "" || f.Seen == "" || f.Change == "" {
			y.t.Errorf("%s: subject %q, seen %q, change %q: one is empty", f.ID, f.Subject, f.Seen, f.Change)
		}
		if !strings.Contains(out.String(), f.ID) || !strings.Contains(out.String(), f.Change) {
			y.t.Errorf("the report lacks %s or what to change:\n%s", f.ID, out.String())
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), out.String()
}

func (y *yard) fakeRoot(files map[string]string) {
	root := y.t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			y.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			y.t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "proc", fmt.Sprint(os.Getpid())), 0o755); err != nil {
		y.t.Fatal(err)
	}
	y.c.root = root
}

func replace(answers map[string]string, path, from, to string) {
	if !strings.Contains(answers[path], from) {
		panic(fmt.Sprintf("%s has no %s", path, from))
	}
	answers[path] = strings.Replace(answers[path], from, to, 1)
}

// asNobody runs with the file rights of nobody, who may not open a socket of mode 0.
func asNobody(run func()) {
	if os.Getuid() != 0 {
		run()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Setfsuid(65534)
	defer func() { _ = unix.Setfsuid(0) }()
	run()
}
