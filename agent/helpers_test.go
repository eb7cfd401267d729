package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(childVariable) != "":
		os.Exit(runChild())
	case os.Getenv(agentVariable) != "":
		os.Exit(runAgentChild())
	case os.Getenv(engineVariable) != "":
		os.Exit(runEngineChild())
	}
	goleak.VerifyTestMain(m)
}

const testBlockSize = 16

func testNamespace() kv.Namespace {
	return kv.Namespace{
		Model: "test", Weights: "w", DType: "bfloat16", Layers: 2, OuterDim: 2, BlockSize: testBlockSize, InnerDim: 32, DTypeBytes: 2,
		Layout: "fully_contiguous", TP: 1, PP: 1, DCP: 1, KVFormat: "test",
	}
}

// testAgent is a running agent and where it lives.
type testAgent struct {
	*Agent
	cfg  Config
	stop func() // stops it and waits; further calls do nothing
}

func testConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	return Config{
		Node: "test-node", Socket: filepath.Join(dir, "agent.sock"),
		HostDir: filepath.Join(dir, "host"), HostBytes: 1 << 20,
		DiskDir: filepath.Join(dir, "disk"), DiskBytes: 4 << 20,
		ExtentBytes: 256 << 10,
	}
}

func startAgent(t *testing.T, cfg Config) *testAgent {
	t.Helper()
	return startLoggedAgent(t, cfg, nil)
}

func startLoggedAgent(t *testing.T, cfg Config, log *zap.Logger) *testAgent {
	t.Helper()
	a, err := New(t.Context(), cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stopped := false
	ta := &testAgent{Agent: a, cfg: cfg, stop: func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("agent: %v", err)
		}
	}}
	t.Cleanup(ta.stop)
	return ta
}

func helloOf(worker uint64) proto.Hello {
	return proto.Hello{Engine: "test", Incarnation: 1, WorkerID: worker, Namespace: testNamespace()}
}

func (a *testAgent) scheduler(t *testing.T, worker uint64) *proto.SchedulerClient {
	t.Helper()
	c, err := a.dial(t, worker)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (a *testAgent) dial(t *testing.T, worker uint64) (*proto.SchedulerClient, error) {
	t.Helper()
	return a.dialWith(t, helloOf(worker))
}

func (a *testAgent) dialWith(t *testing.T, h proto.Hello) (*proto.SchedulerClient, error) {
	t.Helper()
	c, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: a.cfg.Socket, Hello: h})
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func (a *testAgent) worker(t *testing.T, s *proto.SchedulerClient, worker uint64) *proto.WorkerClient {
	t.Helper()
	h := helloOf(worker)
	h.Session = s.Welcome().Session
	c, err := proto.DialWorker(t.Context(), proto.ClientOptions{Socket: a.cfg.Socket, Hello: h}, proto.Register{DeviceBlocks: 64, BlockBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// prompt is n blocks of tokens that are different for each seed.
func prompt(seed, n int) []uint32 {
	tokens := make([]uint32, n*testBlockSize)
	for i := range tokens {
		tokens[i] = uint32(seed*1_000_000 + i)
	}
	return tokens
}

// content is what a test stores for block i of the prompt of seed.
func content(seed, i int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(seed))
	b = binary.LittleEndian.AppendUint64(b, uint64(i))
	return bytes.Repeat(b, 4096/len(b))
}

// storePrompt stores all blocks of a prompt under request r and closes it.
func storePrompt(t *testing.T, c *proto.SchedulerClient, r proto.RequestID, seed, n int) {
	t.Helper()
	if err := c.Open(r, "", "", "", prompt(seed, n)); err != nil {
		t.Fatal(err)
	}
	got, err := c.Store(t.Context(), r, 0, n)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Grants) != n {
		t.Fatalf("%d of %d blocks were granted (present %d, refused %d)", len(got.Grants), n, got.Present, got.Refused)
	}
	var slots []proto.Slot
	for _, g := range got.Grants {
		b, err := c.SlotBytes(g.Slot)
		if err != nil {
			t.Fatal(err)
		}
		copy(b, content(seed, int(g.Block)))
		slots = append(slots, g.Slot)
	}
	if err := c.Commit(t.Context(), r, slots); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseRequest(r); err != nil {
		t.Fatal(err)
	}
}

// checkSlot checks that a slot holds block i of the prompt of seed.
func checkSlot(c interface {
	SlotBytes(proto.Slot) ([]byte, error)
	Generation(proto.Slot) (uint64, error)
}, s proto.Slot, seed, i int) error {
	if g, err := c.Generation(s); err != nil || g != s.Generation {
		return fmt.Errorf("slot %+v: generation word %d, error %v", s, g, err)
	}
	b, err := c.SlotBytes(s)
	if err != nil {
		return err
	}
	if !bytes.Equal(b, content(seed, i)) {
		return fmt.Errorf("slot %+v does not hold block %d", s, i)
	}
	return nil
}

// eventually waits until ok is true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
