package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/gpu"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher/nats"
)

func TestSecondAgentOnASocketIsRefused(t *testing.T) {
	cfg := testConfig(t)
	a := startAgent(t, cfg)
	other := testConfig(t)
	other.Socket = cfg.Socket
	if _, err := agent.New(t.Context(), other, nil); err == nil || !strings.Contains(err.Error(), "another process is serving on it") {
		t.Errorf("got error %v", err)
	}
	a.Scheduler(t, 1) // the first one goes on
}

func TestSocketOfADeadAgentIsReplaced(t *testing.T) {
	cfg := testConfig(t)
	l, err := net.ListenUnix(proto.Network, &net.UnixAddr{Name: cfg.Socket, Net: proto.Network})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	a := startAgent(t, cfg)
	a.Scheduler(t, 1)
	if info, err := os.Stat(cfg.Socket); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("socket mode %v, error %v: want 0660", info.Mode(), err)
	}
}

func TestStopLeavesOnlyTheDiskWhenTheHostIsToBeDiscarded(t *testing.T) {
	cfg := testConfig(t)
	cfg.Tiers.DiscardHost = true
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 3)
	a.stop()
	<-c.Done()
	if _, err := os.Stat(cfg.Socket); !os.IsNotExist(err) {
		t.Errorf("the socket is there: error %v", err)
	}
	if left, _ := os.ReadDir(cfg.Tiers.HostDir); len(left) != 0 {
		t.Errorf("%d host files are left: %v", len(left), left)
	}
	b := startAgent(t, cfg)
	again := b.Scheduler(t, 1)
	r := proto.RequestID{ID: 1}
	agenttest.Open(t, again, r, 1, 3)
	if hit, err := again.Lookup(t.Context(), r, 0, 3, proto.MaxWaitMillis*1e6); err != nil || hit.Ready != 3 {
		t.Errorf("after the restart: got %+v, error %v: want 3 blocks from disk", hit, err)
	}
}

func TestBadConfigIsNamed(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	file := filepath.Join(t.TempDir(), "file")
	agenttest.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, c := range []struct {
		name   string
		early  bool // before anything is started
		change func(*agent.Config)
		want   []string
	}{
		{"no node", true, func(c *agent.Config) { c.Node = "" }, []string{"node name", `""`}},
		{"relative socket", true, func(c *agent.Config) { c.Socket = "a.sock" }, []string{"socket path", "a.sock"}},
		{"long socket", true, func(c *agent.Config) { c.Socket = "/" + strings.Repeat("x", 200) }, []string{"socket path", "201 bytes", "1..107"}},
		{"socket is a file", false, func(c *agent.Config) { c.Socket = file }, []string{"socket path", file, "not a socket"}},
		{"admin without port", true, func(c *agent.Config) { c.Admin = "localhost" }, []string{"admin address", "localhost"}},
		{"admin port in use", false, func(c *agent.Config) { c.Admin = busy.Addr().String() }, []string{"admin address", busy.Addr().String(), "in use"}},
		{"cluster", true, func(c *agent.Config) { c.Cluster = "a b" }, []string{"cluster", "a b"}},
		{"NATS URL", true, func(c *agent.Config) { c.NATSURL = "nats://" }, []string{"nats url"}},
		{"host directory", false, func(c *agent.Config) { c.Tiers.HostDir = filepath.Join(file, "x") }, []string{"host", file}},
		{"disk directory", false, func(c *agent.Config) { c.Tiers.DiskDir = filepath.Join(file, "x") }, []string{"disk", file}},
		{"host size", true, func(c *agent.Config) { c.Tiers.HostBytes = 1 }, []string{"host size", "1"}},
		{"disk size", true, func(c *agent.Config) { c.Tiers.DiskBytes = 5 }, []string{"disk size", "5"}},
		{"no disk directory", true, func(c *agent.Config) { c.Tiers.DiskDir = "" }, []string{"disk directory"}},
		{"NATS scheme", true, func(c *agent.Config) { c.NATSURL = "nats://a:1,http://user:secret@b:1" }, []string{"nats url", "server 2", "nats://", "tls://"}},
		{"admin port", true, func(c *agent.Config) { c.Admin = "127.0.0.1:70000" }, []string{"admin address", "70000", "65535"}},
		{"disk of too many extents", true, func(c *agent.Config) {
			c.Tiers.DiskBytes, c.Tiers.ExtentBytes, c.Tiers.DiskSetting = 2e12, 64<<20, "--disk-size"
		}, []string{"disk size 2TB (--disk-size)", "extent size of at least 119212KiB"}},
		{"too many blocks", true, func(c *agent.Config) {
			c.Tiers.HostBytes, c.Tiers.HostBlocks, c.Tiers.HostSetting = 0, 1<<32-1, "OVERRIDE"
		}, []string{"4294967295 blocks (OVERRIDE)", "at most"}},
		{"disk of more than can be", true, func(c *agent.Config) {
			c.Tiers.DiskBytes, c.Tiers.ExtentBytes, c.Tiers.DiskSetting = 20e12, 0, "--disk-size"
		}, []string{"disk size 20TB (--disk-size)", "at most 16TiB"}},
		{"I/O deadline", true, func(c *agent.Config) { c.Tiers.IODeadline = 1 }, []string{"I/O deadline 1ns", "1ms"}},
		{"extent size", true, func(c *agent.Config) { c.Tiers.ExtentBytes = 2 << 30 }, []string{"extent size", "2GiB"}},
	} {
		cfg := testConfig(t)
		c.change(&cfg)
		_, err := agent.New(t.Context(), cfg, nil)
		if err == nil {
			t.Errorf("%s: the agent started", c.name)
			continue
		}
		if c.early && (cfg.Validate() == nil || agenttest.Exists(cfg.Tiers.HostDir)) {
			t.Errorf("%s: found only after something was started: Validate says %v", c.name, cfg.Validate())
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q does not say %q", c.name, err, want)
			}
		}
		if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error %q has several lines or a password", c.name, err)
		}
	}
}

// A signal may come while the agent starts. It then undoes what it has done.
func TestStartIsBrokenOffWhenItsContextEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var server sync.WaitGroup
	server.Go(func() { // a NATS server that hangs up; the signal comes meanwhile
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			cancel()
			c.Close()
		}
	})
	defer server.Wait()
	defer l.Close()
	cfg := testConfig(t)
	cfg.NATSURL = "nats://" + l.Addr().String()
	if _, err := agent.New(ctx, cfg, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	if _, err := agent.New(ctx, testConfig(t), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("without NATS: got error %v, want %v", err, context.Canceled)
	}
	if agenttest.Exists(cfg.Tiers.HostDir) || agenttest.Exists(cfg.Socket) {
		t.Error("the agent went on starting")
	}
}

func TestGPUsAreListedAsFarAsTheyCanBeRead(t *testing.T) {
	one, broken := []gpu.Device{{Name: "H200"}}, errors.New("GPU 1: lost")
	for _, c := range []struct {
		devices []gpu.Device
		err     error
		want    []string
	}{
		{nil, nil, []string{"no GPU visible"}},
		{nil, errors.New("no NVIDIA driver"), []string{"GPUs are not listed"}},
		{one, nil, []string{"GPU found"}},
		{one, broken, []string{"GPU found", "some GPUs are not listed"}},
	} {
		core, logged := observer.New(zap.InfoLevel)
		agent.LogGPUs(zap.New(core), func() ([]gpu.Device, error) { return c.devices, c.err })
		var got []string
		for _, e := range logged.All() {
			got = append(got, e.Message)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d GPUs, error %v: logged %q, want %q", len(c.devices), c.err, got, c.want)
		}
	}
}

func TestHostMemoryIsPlacedNearTheGPUs(t *testing.T) {
	on := func(nodes ...int) (devices []gpu.Device) {
		for _, n := range nodes {
			devices = append(devices, gpu.Device{MemoryNode: n})
		}
		return devices
	}
	const any = "host extents lie on any memory node"
	for _, c := range []struct {
		name    string
		devices []gpu.Device
		present []int
		err     error
		want    []int
		log     string // the beginning of the only line; empty for none
	}{
		{"GPUs on one of two nodes", on(1, 1), []int{0, 1}, nil, []int{1}, "new host extents lie near the GPUs"},
		{"GPUs on both", on(1, 0, 1), []int{0, 1}, nil, []int{0, 1}, "new host extents lie near the GPUs"},
		{"one node", on(0), []int{0}, nil, nil, ""},
		{"no GPU", nil, []int{0, 1}, nil, nil, any},
		{"unknown nodes", on(gpu.UnknownNode), []int{0, 1}, nil, nil, any},
		{"a node without memory", on(2), []int{0, 1}, nil, nil, any},
		{"unknown machine", on(0), nil, errors.New("no file"), nil, any},
	} {
		core, logged := observer.New(zap.InfoLevel)
		got := agent.HostNodes(zap.New(core), c.devices, c.present, c.err)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: nodes %v, want %v", c.name, got, c.want)
		}
		lines := logged.All()
		if len(lines) > 1 || (len(lines) == 1) != (c.log != "") || (len(lines) == 1 && !strings.HasPrefix(lines[0].Message, c.log)) {
			t.Errorf("%s: logged %v, want %q", c.name, lines, c.log)
		}
	}
}

func get(t *testing.T, a *testAgent, path string) (int, string) {
	t.Helper()
	return getFrom(t, a.AdminAddr(), path)
}

func getFrom(t *testing.T, address, path string) (int, string) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr}).Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestAdminShowsThePool(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 7)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 2)
	agenttest.Eventually(t, "the agent is quiet", func() bool { return a.Stats().Quiet })

	var pools []struct {
		Pool       uint64
		Model      string
		BlockBytes uint64 `json:"block_bytes"`
		Blocks     []struct {
			Key, Hash  string
			Tiers      []string
			Host, Disk struct {
				Path   string
				Offset int64
			}
		}
	}
	body := a.dump(t)
	if err := json.Unmarshal([]byte(body), &pools); err != nil || len(pools) != 1 || len(pools[0].Blocks) != 2 {
		t.Fatalf("error %v, got %s", err, body)
	}
	if pools[0].Pool != c.Welcome().Pool || pools[0].BlockBytes != 4096 || pools[0].Model != "test" {
		t.Errorf("got %+v", pools[0])
	}
	for _, b := range pools[0].Blocks {
		if strings.Join(b.Tiers, " ") != "host_pinned disk" || len(b.Hash) != 16 {
			t.Errorf("block %+v", b)
		}
		checkBytesAt(t, b.Host.Path, b.Host.Offset)
		checkBytesAt(t, b.Disk.Path, b.Disk.Offset)
	}
}

// checkBytesAt checks that a block of storePrompt with seed 1 lies in a file.
func checkBytesAt(t *testing.T, path string, offset int64) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	got := make([]byte, 4096)
	if _, err := f.ReadAt(got, offset); err != nil {
		t.Error(err)
		return
	}
	if s := string(got); s != string(agenttest.Content(1, 0)) && s != string(agenttest.Content(1, 1)) {
		t.Errorf("no block lies in %s at %d", path, offset)
	}
}

func TestAdminHealthStatsAndMetrics(t *testing.T) {
	a := startAgent(t, testConfig(t))
	c := a.Scheduler(t, 7)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 2)
	agenttest.Eventually(t, "the agent is quiet", func() bool { return a.Stats().Quiet })
	for path, want := range map[string]string{
		"/healthz": "ok", "/readyz": "ready",
		"/v1/stats": `"owner":"worker 7/0"`,
		"/metrics":  `blockyard_pool_operations_total{kind="committed",pool="`,
	} {
		if status, body := get(t, a, path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: status %d, want %q in %s", path, status, want, body)
		}
	}
	_, body := get(t, a, "/v1/stats")
	var s struct {
		Node     string
		Sessions int
		Quiet    bool
		Events   struct{ In uint64 }
		Pools    []map[string]any
	}
	if err := json.Unmarshal([]byte(body), &s); err != nil || s.Node != "test-node" || s.Sessions != 1 || !s.Quiet || s.Events.In != 4 {
		t.Errorf("error %v, got %s", err, body)
	}
	if s.Pools[0]["committed"] != 2.0 || s.Pools[0]["pool"] != float64(c.Welcome().Pool) {
		t.Errorf("pool %v", s.Pools[0])
	}
	if status, _ := get(t, a, "/v1/other"); status != http.StatusNotFound {
		t.Errorf("unknown path: status %d", status)
	}
}

func TestPoolAndWorkerArePublished(t *testing.T) {
	nats, err := nats.StartEmbedded(nats.EmbeddedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer nats.Close()
	cfg := testConfig(t)
	cfg.NATSURL = nats.URL()
	a := startAgent(t, cfg)
	defer a.stop() // before the server closes
	c := a.Scheduler(t, 7)
	agenttest.StorePrompt(t, c, proto.RequestID{ID: 1}, 1, 3)
	agenttest.Eventually(t, "all is published", func() bool {
		s := a.Stats()
		return s.Quiet && len(s.Streams) == 2 && s.Streams[0].Blocks == 6 && s.Events.Out > 0
	})
	s := a.Stats()
	if s.Streams[0].Owner != "pool "+jsonNumber(c.Welcome().Pool) || s.Streams[1].Owner != "worker 7/0" {
		t.Errorf("streams %+v", s.Streams)
	}
	for _, st := range s.Streams {
		if len(st.PublisherID) != 16 || st.Health != "exact" {
			t.Errorf("stream %+v", st)
		}
	}
	agenttest.Bye(t, c)
	if s := a.Stats(); len(s.Streams) != 1 || s.Streams[0].Blocks != 6 {
		t.Errorf("after BYE: streams %+v, want the pool's alone", s.Streams)
	}
}

func jsonNumber(v uint64) string {
	b, _ := json.Marshal(v)
	return string(b)
}
