package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/node"
	"github.com/blockyard-ai/blockyard/lab/engine"
)

// TestSimEnginesShareAnAgent runs an agent and two engines in this process: what
// one engine has computed, the other one loads and verifies.
func TestSimEnginesShareAnAgent(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "agent.sock")
	node, err := agent.New(t.Context(), agent.Config{
		Node: "test", Socket: socket, Tiers: node.Tiers{Config: blockmgr.Config{HostDir: filepath.Join(dir, "host"), HostBytes: 4 << 20, ExtentBytes: 1 << 20}},
	}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
	group.Go(func() {
		if err := node.Run(ctx); err != nil {
			t.Errorf("agent: %v", err)
		}
	})
	var urls []string
	for id := range uint64(2) {
		urls = append(urls, startSimEngine(ctx, t, &group, id+1, socket))
	}
	prompt := make([]uint32, 100) // 6 full blocks of 16 tokens
	for i := range prompt {
		prompt[i] = uint32(i)
	}
	first := simGenerate(t, urls[0], prompt)
	if want := (engine.Served{Recomputed: 100}); first != want {
		t.Errorf("first engine: served %+v, want %+v", first, want)
	}
	waitIdle(t, urls[0])
	second := simGenerate(t, urls[1], prompt)
	if want := (engine.Served{Host: 96, Recomputed: 4}); second != want {
		t.Errorf("second engine: served %+v, want %+v", second, want)
	}
	stats := waitIdle(t, urls[1])
	if stats.BlocksVerified != 6 || stats.WrongBytes != 0 || stats.Sessions != 1 {
		t.Errorf("second engine: %+v", stats)
	}
}

func startSimEngine(ctx context.Context, t *testing.T, group *sync.WaitGroup, id uint64, socket string) (url string) {
	t.Helper()
	c := simEngineCmd{
		WorkerID: id, AgentSocket: socket, Model: "test", DType: "bfloat16", BlockSize: 16, Layers: 2, OuterDim: 2,
		InnerDim: 32, DTypeBytes: 2, SpeedUp: 100,
	}
	e, err := engine.New(c.options(), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan engine.Endpoints, 1)
	group.Go(func() {
		if err := e.Run(ctx, func(e engine.Endpoints) { ready <- e }); err != nil {
			t.Errorf("engine %d: %v", id, err)
		}
	})
	select {
	case e := <-ready:
		return "http://" + e.HTTP
	case <-time.After(20 * time.Second):
		t.Fatalf("engine %d is not ready after 20 s", id)
		return ""
	}
}

// simGenerate runs one request to its end and returns what served it.
func simGenerate(t *testing.T, url string, prompt []uint32) (served engine.Served) {
	t.Helper()
	body, err := json.Marshal(engine.GenerateRequest{RequestID: "r", Tokens: prompt, OutputTokens: 2})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url+"/v1/generate", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for d := json.NewDecoder(resp.Body); d.More(); {
		var e engine.GenerateEvent
		if err := d.Decode(&e); err != nil || e.Event == "error" {
			t.Fatalf("%+v: %v", e, err)
		}
		if e.Served != nil {
			served = *e.Served
		}
	}
	return served
}

func waitIdle(t *testing.T, url string) engine.Stats {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		resp, err := http.Get(url + "/v1/state")
		if err != nil {
			t.Fatal(err)
		}
		var s engine.State
		err = json.NewDecoder(resp.Body).Decode(&s)
		resp.Body.Close()
		switch {
		case err != nil:
			t.Fatal(err)
		case s.Idle:
			return s.Stats
		case time.Now().After(deadline):
			t.Fatalf("engine is not idle after 20 s: %+v", s)
		}
	}
}
