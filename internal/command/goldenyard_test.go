package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/lab/engine"
	publisherdynamo "github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/nats"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/dynamo"
	httpsource "github.com/blockyard-ai/blockyard/router/source/http"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

// goldenYard is an agent with all its outputs, an engine beside it and a router that
// follows both.
type goldenYard struct {
	admin  string
	engine string
	router *router.Router
	loads  chan source.Frame // reaches the router
}

// goldenLoads is a transport of load reports alone.
type goldenLoads chan source.Frame

// Frames implements router.Transport.
func (c goldenLoads) Frames() <-chan source.Frame { return c }

// Query implements router.Transport.
func (c goldenLoads) Query(context.Context, uint64, kvevent.QueryRequest) (*source.Answer, error) {
	return nil, errors.New("load reports alone come from here")
}

// Stats implements router.Transport.
func (c goldenLoads) Stats() source.Stats { return source.Stats{Connected: true} }

func startGoldenYard(t *testing.T) *goldenYard {
	t.Helper()
	dir, err := os.MkdirTemp("", "by") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	at := func(name string) string { return filepath.Join(dir, name) }
	a, err := agent.New(t.Context(), agent.Config{
		Node: "n", Socket: at("s"),
		Tiers:           node.Tiers{Config: blockmgr.Config{HostDir: at("h"), HostBytes: 16 << 20, DiskDir: at("d"), DiskBytes: 16 << 20, ExtentBytes: 1 << 20}},
		DiskWriteBudget: 1 << 60, // so large that it bounds nothing
		Events: events.Options{
			Embedded: &nats.EmbeddedOptions{},
			Dynamo:   &publisherdynamo.Options{Namespace: "dynamo", Component: "backend", Endpoint: "generate", FileKV: at("kv")},
		},
	}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, a.Run)
	y := &goldenYard{admin: "http://" + a.AdminAddr(), engine: startEngineBeside(t, a.SocketPath()), loads: make(chan source.Frame)}
	y.connect(t, a.SocketPath())
	y.startRouter(t)
	return y
}

// connect connects a second engine, which names an endpoint for its merged events and
// reports its connector's counters.
func (y *goldenYard) connect(t *testing.T, socket string) {
	t.Helper()
	c, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: socket, Hello: proto.Hello{
		Engine: "test", Incarnation: 1, WorkerID: 8, Namespace: engineNamespace(), ConsolidatedEndpoint: fmt.Sprintf("tcp://127.0.0.1:%d", freeEventPort(t)),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.Report(proto.Stats{Lookups: 1, DeviceBlocksTotal: 64}); err != nil {
		t.Fatal(err)
	}
}

// freeEventPort returns a port that is free together with the one for replays, 1000 above.
func freeEventPort(t *testing.T) int {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		if port+1000 > 65535 {
			continue
		}
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+1000)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free ports")
	return 0
}

// startRouter runs a router that follows the agent over HTTP, and a deployment of
// Dynamo that has no workers.
func (y *goldenYard) startRouter(t *testing.T) {
	t.Helper()
	h, err := httpsource.Connect(httpsource.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	endpoint, err := dynamo.ParseEndpoint("dynamo.backend.generate")
	if err != nil {
		t.Fatal(err)
	}
	d, err := dynamo.Open(dynamo.Options{Directory: t.TempDir(), Endpoint: endpoint, NoEvents: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	g, err := registry.New(registry.Options{HTTP: h, Agents: []string{y.admin}}, h, d, goldenLoads(y.loads))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	c := config.Default()
	c.Score = config.ScorePrice
	if y.router, err = router.New(router.Options{Config: &c}, g); err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, y.router.Run)
}

// ask returns the answer of the agent to GET path.
func (y *goldenYard) ask(t *testing.T, path string) string {
	t.Helper()
	answer, err := http.Get(y.admin + path)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", path, answer.Status, err)
	}
	return string(body)
}

// askRouter returns the router's answer to a request.
func (y *goldenYard) askRouter(t *testing.T, method, path, body string) string {
	t.Helper()
	w := httptest.NewRecorder()
	api.New(y.router, api.Options{}).Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
	if w.Code != http.StatusOK {
		t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	return w.Body.String()
}

// use sends a prompt to the engine and its successor to the router, and waits until the
// metrics have what comes of that.
func (y *goldenYard) use(t *testing.T) {
	t.Helper()
	tokens := make([]uint32, 16*10+1)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	body, err := json.Marshal(engine.GenerateRequest{RequestID: "r", Tokens: tokens, OutputTokens: 2})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.Post(y.engine+"/v1/generate", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	list, err := json.Marshal(tokens)
	if err != nil {
		t.Fatal(err)
	}
	waittest.Pass(t, func() string {
		return lacks(y.ask(t, "/metrics"), `output="dynamo",owner="worker 7/0"`, `output="zmq",owner="worker 8/0"`, `role="scheduler",worker="8"`)
	})
	waittest.Pass(t, func() string {
		return lacks(y.askRouter(t, http.MethodGet, "/metrics", ""), "blockyard_router_workers 2", "blockyard_router_feeds_exact 3")
	})
	y.measure()
	waittest.Pass(t, func() string {
		return lacks(y.askRouter(t, http.MethodGet, "/metrics", ""),
			`blockyard_router_load{kind="`, `owner="worker 7/0"}`, `owner="worker 8/0"}`, `blockyard_router_load_age_seconds{owner="pool `, `blockyard_router_measured_age_seconds{measure="copy_bytes"`, `blockyard_router_measured_age_seconds{measure="disk_bytes"`)
	})
	y.askRouter(t, http.MethodPost, "/v1/route", fmt.Sprintf(`{"method":"new","request_id":"a","tokens":%s}`, list))
	w := httptest.NewRecorder()
	api.New(y.router, api.Options{}).Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/route", strings.NewReader("{")))
	if w.Code != http.StatusBadRequest {
		t.Fatalf("a bad request: %d %s", w.Code, w.Body)
	}
}

// measure tells the router what copies and reads took, which the engine's own reports
// say only where it happened to load blocks.
func (y *goldenYard) measure() {
	w := y.router.Workers()[1]
	for range 12 {
		for _, r := range []kvevent.LoadReport{
			{PublisherID: 1, Owner: kv.WorkerOwner(w.Worker), Worker: kvevent.WorkerLoad{DeviceBlocksTotal: 64, CopyBytes: 1 << 20, CopyMicros: 1000}},
			{PublisherID: 2, Owner: kv.PoolOwner(w.Pool), Pool: kvevent.PoolLoad{BlockBytes: 4096, DiskReadBytes: 1 << 20, DiskReadMicros: 1000}},
		} {
			y.loads <- source.Frame{Kind: source.FrameLoad, Data: kvevent.AppendLoadReport(nil, &r)}
		}
	}
}

// lacks names the first of the wanted parts that text does not have.
func lacks(text string, wanted ...string) string {
	for _, w := range wanted {
		if !strings.Contains(text, w) {
			return fmt.Sprintf("the text lacks %q", w)
		}
	}
	return ""
}
