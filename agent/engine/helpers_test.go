package engine

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/descriptors"
	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/agent/pools"
	"github.com/blockyard-ai/blockyard/agent/socket"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testServer is a running server with all that it needs of an agent.
type testServer struct {
	*Server
	agenttest.Socket
	events *events.Hub
	pools  *pools.Set
	stop   func() error
}

// startServer starts a server after the changes.
func startServer(t *testing.T, log *zap.Logger, change ...func(*Server)) *testServer {
	t.Helper()
	log = cmp.Or(log, zap.NewNop())
	cfg := Config{AllowUIDs: []uint32{0, uint32(os.Getuid())}, MaxRequests: 4096, MaxPins: 65536}
	a := newServer(t, t.TempDir(), cfg, blockmgr.Config{HostBytes: 1 << 20}, log, change...)
	t.Cleanup(func() {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// newServer starts a server whose socket and tiers lie in dir.
func newServer(t *testing.T, dir string, cfg Config, tiers blockmgr.Config, log *zap.Logger, change ...func(*Server)) *testServer {
	t.Helper()
	path := filepath.Join(dir, "agent.sock")
	tiers.HostDir, tiers.DiskDir = filepath.Join(dir, "host"), filepath.Join(dir, "disk")
	tiers.ExtentBytes, tiers.MaxPinsPerSession, tiers.SharePins = 256<<10, cfg.MaxPins, true
	hub, err := events.Open(t.Context(), events.Config{Node: "test-node", Cluster: "test"}, log)
	if err != nil {
		t.Fatal(err)
	}
	set, err := pools.Open("test-node", node.Tiers{Config: tiers}, hub, log)
	if err != nil {
		t.Fatal(err)
	}
	l, err := socket.Listen(path, false, log)
	if err != nil {
		t.Fatal(err)
	}
	files, err := descriptors.Divide(descriptors.Needs{})
	if err != nil {
		t.Fatal(err)
	}
	s := New(cfg, set, hub, files, l, log)
	for _, do := range change {
		do(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- s.Run(ctx) }()
	go func() { hub.Run(ctx); done <- nil }()
	stop := func() error {
		cancel()
		s.Close()
		return errors.Join(<-done, <-done, set.Close(), hub.Close())
	}
	return &testServer{Server: s, Socket: agenttest.Socket(path), events: hub, pools: set, stop: stop}
}

// session is the one that a worker's rank 0 has.
func (a *testServer) session(worker kv.WorkerID) *session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byWorker[kv.Worker{ID: worker}]
}

// pool is what the only pool counts.
func (a *testServer) pool() blockmgr.Stats { return a.pools.Manager().Pools()[0].Stats() }

// noOwner is the owner of requests without tenants.
func noOwner(string) uint64 { return 0 }
