package agent_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/lab/engine"
)

// simEngine is a simulated engine under load from a few clients.
type simEngine struct {
	address string
	http    *http.Client
}

// startSimEngine runs an engine whose device is too small for what its clients
// ask for, so that blocks go to the agent and come back all the time.
func startSimEngine(t *testing.T, socket string) *simEngine {
	t.Helper()
	ns := agenttest.Namespace()
	ns.Layers, ns.InnerDim = 8, 256 // blocks of 128 KiB: copies take their time
	e, err := engine.New(engine.Options{
		Worker: kv.Worker{ID: 1}, Namespace: ns, AgentSocket: socket, DeviceBlocks: 64, SpeedUp: 1000,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	at := make(chan engine.Endpoints, 1)
	go func() { ended <- e.Run(ctx, func(p engine.Endpoints) { at <- p }) }()
	tr := &http.Transport{DisableKeepAlives: true}
	s := &simEngine{address: "http://" + (<-at).HTTP, http: &http.Client{Transport: tr}}
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				s.generate(ctx, rand.IntN(10))
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		clients.Wait()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// generate has the engine serve the prompt of seed. What becomes of it shows in
// the engine's counters.
func (s *simEngine) generate(ctx context.Context, seed int) {
	body, _ := json.Marshal(engine.GenerateRequest{Tokens: agenttest.Prompt(seed, 12), OutputTokens: 2})
	req, err := http.NewRequestWithContext(ctx, "POST", s.address+"/v1/generate", strings.NewReader(string(body)))
	if err != nil {
		return
	}
	if resp, err := s.http.Do(req); err == nil {
		var line engine.GenerateEvent
		for d := json.NewDecoder(resp.Body); d.Decode(&line) == nil; {
		}
		resp.Body.Close()
	}
}

func (s *simEngine) stats(t *testing.T) engine.Stats {
	t.Helper()
	status, body := getFrom(t, strings.TrimPrefix(s.address, "http://"), "/v1/state")
	var state engine.State
	if err := json.Unmarshal([]byte(body), &state); err != nil || status != http.StatusOK {
		t.Fatalf("status %d, error %v", status, err)
	}
	return state.Stats
}

func TestEngineThatCopiesWhileItsAgentsAreKilledReadsNothingWrong(t *testing.T) {
	const kills = 4
	cfg := testConfig(t)
	cfg.Tiers.HostBytes, cfg.Tiers.DiskBytes, cfg.Tiers.ExtentBytes = 12<<20, 0, 4<<20 // less than the prompts: stores never end
	a := startAgentChild(t, cfg)
	e := startSimEngine(t, cfg.Socket)
	var last engine.Stats
	for n := range kills {
		agenttest.Eventually(t, "blocks go both ways", func() bool {
			s := e.stats(t)
			return s.Sessions > uint64(n) && s.BlocksStored+s.BlocksLoaded > last.BlocksStored+last.BlocksLoaded+100 && s.BlocksLoaded > last.BlocksLoaded
		})
		last = e.stats(t)
		a.kill()
		if n < kills-1 {
			a = startAgentChild(t, cfg)
		}
	}
	b := startAgent(t, cfg)
	agenttest.Eventually(t, "the engine goes on", func() bool {
		s := e.stats(t)
		return s.Resumes == kills && s.BlocksLoaded > last.BlocksLoaded
	})
	s := e.stats(t)
	if s.WrongBytes != 0 {
		t.Errorf("%d wrong bytes", s.WrongBytes)
	}
	t.Logf("%d blocks verified, %d stored, %d of them after a RESUME", s.BlocksVerified, s.BlocksStored+s.BlocksResumed, s.BlocksResumed)
	agenttest.Eventually(t, "nothing is left of earlier sessions", func() bool {
		st := b.Stats()
		return st.Engines.Previous == 0 && st.Pools[0].Host.Quarantined == 0
	})
}
