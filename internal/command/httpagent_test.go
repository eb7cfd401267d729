package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/lab/engine"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/feed"
	httpsource "github.com/blockyard-ai/blockyard/router/source/http"
)

// startAgentWithoutNATS runs an agent until the test ends, and returns its admin URL
// and its socket.
func startAgentWithoutNATS(t *testing.T) (admin, socket string) {
	t.Helper()
	// The path of a socket is short.
	dir, err := os.MkdirTemp("", "by")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	a, err := agent.New(t.Context(), agent.Config{
		Node: "n", Socket: filepath.Join(dir, "s"), Tiers: node.Tiers{Config: blockmgr.Config{HostDir: filepath.Join(dir, "h"), HostBytes: 16 << 20, ExtentBytes: 1 << 20}},
		Events: events.Options{WorkerTaints: "a,b"},
	}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, a.Run)
	return "http://" + a.AdminAddr(), a.SocketPath()
}

// runUntilEnd runs something until the test ends.
func runUntilEnd(t *testing.T, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// engineNamespace returns what the engines of these tests serve.
func engineNamespace() kv.Namespace {
	return kv.Namespace{Model: "m", Weights: "none", DType: "bfloat16", Layers: 2, OuterDim: 2, BlockSize: 16, InnerDim: 32,
		DTypeBytes: 2, Layout: "fully_contiguous", TP: 1, PP: 1, DCP: 1, KVFormat: "blockyard-sim-1"}
}

// startEngineBeside runs a simulated engine next to an agent and returns its URL.
func startEngineBeside(t *testing.T, socket string) string {
	t.Helper()
	e, err := engine.New(engine.Options{
		Worker: kv.Worker{ID: 7}, AgentSocket: socket, HTTPAddr: "127.0.0.1:0", DeviceBlocks: 64, SpeedUp: 50,
		Namespace: engineNamespace(),
	}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	up := make(chan string, 1)
	runUntilEnd(t, func(ctx context.Context) error {
		return e.Run(ctx, func(p engine.Endpoints) { up <- p.HTTP })
	})
	select {
	case at := <-up:
		return "http://" + strings.TrimPrefix(at, "http://")
	case <-time.After(20 * time.Second):
		t.Fatal("the engine does not start")
	}
	return ""
}

// TestAgentWithoutNATSIsFollowedOverHTTP: a real engine's blocks on the device and in
// its pool reach a real router over the agent's admin address, with the worker's load and
// what the worker can do.
func TestAgentWithoutNATSIsFollowedOverHTTP(t *testing.T) {
	admin, socket := startAgentWithoutNATS(t)
	h, err := httpsource.Connect(httpsource.Options{Agents: []string{admin}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	r, err := router.New(router.Options{}, h)
	if err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, r.Run)
	url := startEngineBeside(t, socket)
	tokens := make([]uint32, 16*10+1)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	body, err := json.Marshal(engine.GenerateRequest{RequestID: "r", Tokens: tokens, OutputTokens: 2})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url+"/v1/generate", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	waittest.Pass(t, func() string {
		m, err := r.FindBestMatch(t.Context(), &router.Request{Tokens: tokens})
		if err != nil {
			return err.Error()
		}
		load, known := r.Loads()[kv.WorkerOwner(m.Worker)]
		pool := r.Workers()[0].Pool
		if m.Worker.ID != 7 || m.Hits[kv.TierDevice] != 10 || m.Quality != feed.Exact ||
			!known || load.Worker.DeviceBlocksTotal == 0 || r.Loads()[kv.PoolOwner(pool)].Pool.HostBytesUsed == 0 {
			return fmt.Sprintf("match %+v, loads %+v", m, r.Loads())
		}
		return ""
	})
	if c := r.Workers()[0].Card; c.DeviceBlocks != 64 || c.MaxBatchedTokens != 2048 || c.Taints != "a,b" {
		t.Errorf("card %+v", c)
	}
	var shown bytes.Buffer
	if status := Product("").Run(t.Context(), []string{"inspect", admin}, &shown, &shown); status != 0 ||
		!strings.Contains(shown.String(), "worker 7/0") || !strings.Contains(shown.String(), "over HTTP: 1 clients") {
		t.Errorf("inspect: status %d\n%s", status, shown.String())
	}
}
