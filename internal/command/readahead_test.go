package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/router"
)

// agentWithDisk runs an agent with a disk tier until the test ends.
func agentWithDisk(t *testing.T) *agent.Agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "by") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	a, err := agent.New(t.Context(), agent.Config{
		Node: "n", Socket: filepath.Join(dir, "s"), Tiers: node.Tiers{Config: blockmgr.Config{
			HostDir: filepath.Join(dir, "h"), HostBytes: 1 << 20, DiskDir: filepath.Join(dir, "d"), DiskBytes: 4 << 20, ExtentBytes: 256 << 10,
		}},
	}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, a.Run)
	return a
}

// emptyHost waits until the agent's blocks are on disk and empties its host tier.
func emptyHost(t *testing.T, a *agent.Agent) {
	t.Helper()
	agenttest.Eventually(t, "the blocks are on disk", func() bool {
		s := a.Stats()
		return s.Quiet && s.Pools[0].BytesWritten > 0
	})
	client, base, err := control.Client(a.ControlAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	resp, err := client.Post(base+"/v1/reset", "application/json", strings.NewReader(`{"tier":"host"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("reset: %s", resp.Status)
	}
}

// TestTheFrontDoorReadsAhead: the blocks of a prompt are on disk alone. While the server of the worker
// holds the request, and before its engine says anything of it to the agent, the hint of the front
// door's decision brings the blocks into host memory. The engine's LOOKUP finds them there.
func TestTheFrontDoorReadsAhead(t *testing.T) {
	withoutSettings(t)
	t.Setenv("NATS_SERVER", "")
	const blocks = 5
	a := agentWithDisk(t)
	var c *proto.SchedulerClient
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"object":"list","data":[{"id":"test","object":"model","owned_by":"vllm","parent":null,"max_model_len":4096}]}`)
		case "/v1/completions":
			_, _ = io.Copy(io.Discard, r.Body)
			agenttest.Eventually(t, "the blocks are in host memory", func() bool {
				s := a.Stats()
				return s.Quiet && s.Pools[0].Promotions == blocks
			})
			agenttest.Socket(a.SocketPath()).WantFound(t, c, 1, blocks)
			fmt.Fprint(w, `{"id":"x","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":"stop"}]}`)
		}
	}))
	t.Cleanup(server.Close)
	hello := agenttest.Hello(1)
	hello.ServingEndpoint = server.URL
	c = agenttest.Socket(a.SocketPath()).Connect(t, hello)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, blocks)
	emptyHost(t, a)

	address := openDoorTo(t, a)
	body, err := json.Marshal(map[string]any{"model": "test", "prompt": append(agenttest.Prompt(1, blocks), 7)})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %s, %v", resp.Status, got, err)
	}
	s := a.Stats()
	if p, h := &s.Pools[0], s.Outputs.ReadAhead; p.Promotions != blocks || h.Taken != 1 || h.Blocks != blocks || s.Engines.Prefetched != 0 {
		t.Errorf("%d reads, hints %+v, %d reads by OPEN; want the reads of 1 hint alone", p.Promotions, h, s.Engines.Prefetched)
	}
}

// openDoorTo runs a router with a front door that follows an agent over HTTP, waits until the router
// has the agent's blocks and the worker is ready, and returns the door's address.
func openDoorTo(t *testing.T, a *agent.Agent) string {
	t.Helper()
	f := settle(t, "--http-port=0", "--http-host=127.0.0.1", "--agents=http://"+a.AdminAddr())
	sources, err := f.openSources(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	r, err := router.New(f.options("", zap.NewNop()), sources.Source)
	if err != nil {
		t.Fatal(err)
	}
	servers, err := f.directory(r, sources, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	door, err := f.openDoor(ctx, r, servers, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	g.Go(func() error { return r.Run(ctx) })
	g.Go(func() error { return servers.Run(ctx) })
	g.Go(func() error { return door.serve(ctx) })
	t.Cleanup(func() {
		end()
		if err := errors.Join(g.Wait(), sources.Close()); err != nil {
			t.Error(err)
		}
	})
	waittest.Pass(t, func() string {
		m, err := r.FindBestMatch(t.Context(), &router.Request{Tokens: agenttest.Prompt(1, 5)})
		if err != nil || m.Hits.Total() != 5 {
			return fmt.Sprintf("%+v, %v", m, err)
		}
		scraped := httptest.NewRecorder()
		r.Metrics().Handler().ServeHTTP(scraped, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if !strings.Contains(scraped.Body.String(), "blockyard_frontend_workers_ready 1\n") {
			return "the worker's server is not ready"
		}
		return ""
	})
	return door.clients.Addr().String()
}
