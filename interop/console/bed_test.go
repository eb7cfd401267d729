package console

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/front"
)

const (
	blockSize = 16
	// simulated is the model of the simulated engines.
	simulated = "llama-3.1-8b"
	// stubModel is the model of the stubs.
	stubModel = "stub"
)

// bed is a cluster with traffic: agents with simulated engines, whose requests a gateway routes, and
// stubs of vLLM servers behind the router's front door.
type bed struct {
	t       *testing.T
	cluster *cluster.Cluster
	agents  []*cluster.Agent
	engines map[uint64]*cluster.Engine
	router  *cluster.Router
	door    cluster.Endpoint
	client  *cluster.Client
}

// newBed starts the cluster until the end of the test. flags are the router's.
func newBed(t *testing.T, flags ...string) *bed {
	t.Helper()
	dirs, err := cluster.MakeDirs("console", "", "", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	bin := func(name string) string {
		path, err := filepath.Abs("../../bin/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	b := &bed{t: t, engines: make(map[uint64]*cluster.Engine), client: cluster.NewClient(16)}
	b.cluster = cluster.New(cluster.Options{Dirs: dirs, Programs: cluster.Programs{Product: bin("blockyard"), Lab: bin("blockyard-lab")}})
	t.Cleanup(func() {
		b.client.Close()
		b.cluster.Close(10 * time.Second)
		if err := dirs.Remove(false); err != nil {
			t.Error(err)
		}
	})
	var follow []string
	for n := range 2 {
		a, err := b.cluster.StartAgent(t.Context(), cluster.AgentOptions{
			Node: "node-" + strconv.Itoa(n+1), HostBytes: 64 << 20, DiskBytes: 192 << 20, ExtentBytes: 4 << 20, Flags: []string{"--discard-host"}})
		if err != nil {
			t.Fatal(err)
		}
		b.agents = append(b.agents, a)
		follow = append(follow, a.URL)
	}
	for id := uint64(1); id <= 4; id++ {
		e, err := b.cluster.StartEngine(t.Context(), cluster.EngineOptions{
			Worker: id, Socket: b.agents[id%2].Socket, BlockSize: blockSize, DeviceBlocks: 1024, Layers: 4, Outer: 2, Inner: 128, SpeedUp: 1, Seed: id,
			Flags: []string{"--model=" + simulated, "--prefill-tokens-per-second=8000", "--step-base=10ms"}})
		if err != nil {
			t.Fatal(err)
		}
		b.engines[id] = e
	}
	command := append(flags, "--router-mode=kv", "--agents="+strings.Join(follow, ","), "--http-host=127.0.0.1", "--http-port=0")
	for range 2 {
		command = append(command, "--worker="+startStub(t))
	}
	b.startRouter(command)
	return b
}

// startRouter starts the router, and waits until it knows all workers.
func (b *bed) startRouter(flags []string) {
	b.t.Helper()
	var ready struct{ HTTP, Control, Door string }
	p, err := b.cluster.StartReady(b.t.Context(), cluster.Spec{Name: "router", Stage: 3,
		Command: append([]string{"../../bin/blockyard", "router", "--http=127.0.0.1:0", "--control=127.0.0.1:0"}, flags...)}, &ready)
	if err != nil {
		b.t.Fatal(err)
	}
	b.router = &cluster.Router{Process: p, Endpoint: b.client.At("router", ready.HTTP), Control: b.client.At("router", ready.Control)}
	b.door = b.client.At("door", ready.Door)
	b.until("the router knows six workers exactly", func() (bool, error) {
		var known []struct{ Quality string }
		err := b.router.Get(b.t.Context(), "/v1/workers", &known)
		exact := 0
		for _, w := range known {
			if w.Quality == "exact" {
				exact++
			}
		}
		return exact == 6, err
	})
}

// until waits until holds.
func (b *bed) until(what string, holds func() (bool, error)) {
	b.t.Helper()
	if err := cluster.Until(b.t.Context(), patience, look, holds); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// startStub starts a stub of a vLLM server until the end of the test, and returns its URL.
func startStub(t *testing.T) string {
	t.Helper()
	in, end := io.Pipe()
	lines, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- front.Serve(context.Background(), in, out) }()
	var ready front.Ready
	if err := json.NewDecoder(lines).Decode(&ready); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = end.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return "http://" + ready.HTTP
}

// prompt returns a prompt of one of 160 conversations, as far as a turn.
func prompt(conversation, turn int) []uint32 {
	tokens := make([]uint32, 0, 4096)
	text := rand.New(rand.NewPCG(uint64(conversation), 1))
	system := rand.New(rand.NewPCG(uint64(conversation%6), 2))
	for range 40 * blockSize {
		tokens = append(tokens, system.Uint32N(30000))
	}
	for range (turn + 1) * 14 * blockSize {
		tokens = append(tokens, text.Uint32N(30000))
	}
	return append(tokens, uint32(turn))
}

// traffic sends requests until the end of the test.
func (b *bed) traffic() {
	ctx, stop := context.WithCancel(context.Background())
	var senders sync.WaitGroup
	for s := range 4 {
		senders.Go(func() {
			pick := rand.New(rand.NewPCG(uint64(s), 3))
			for i := 0; ctx.Err() == nil; i++ {
				tokens := prompt(pick.IntN(160), pick.IntN(5))
				var err error
				if s < 3 {
					err = b.generate(ctx, fmt.Sprintf("chat-%d-%d", s, i), tokens)
				} else {
					err = b.complete(ctx, tokens)
				}
				if err != nil && ctx.Err() == nil {
					b.t.Errorf("a request failed: %v", err)
					return
				}
			}
		})
	}
	b.t.Cleanup(func() {
		stop()
		senders.Wait()
	})
}

// generate routes a request as a gateway does, and has the chosen engine answer it.
func (b *bed) generate(ctx context.Context, id string, tokens []uint32) error {
	var route struct {
		WorkerID uint64 `json:"worker_id"`
	}
	ask := func(method string, more map[string]any) error {
		body := map[string]any{"method": method, "request_id": id, "model": simulated}
		for k, v := range more {
			body[k] = v
		}
		return b.router.Post(ctx, "/v1/route", body, &route)
	}
	if err := ask("new", map[string]any{"tokens": tokens}); err != nil {
		return err
	}
	text, err := json.Marshal(map[string]any{"request_id": id, "tokens": tokens, "output_tokens": 12})
	if err != nil {
		return err
	}
	request := cluster.Request{Method: "POST", Path: "/v1/generate", Body: text, Limit: patience}
	err = b.engines[route.WorkerID].Do(ctx, request, func(answer io.Reader) error {
		lines := json.NewDecoder(answer)
		var event struct{ Event, Message string }
		for lines.Decode(&event) == nil {
			switch event.Event {
			case "first_token":
				if err := ask("mark_prefill", nil); err != nil {
					return err
				}
			case "error":
				return fmt.Errorf("engine: %s", event.Message)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return ask("mark_free", nil)
}

// complete sends a completion to the front door.
func (b *bed) complete(ctx context.Context, tokens []uint32) error {
	text, err := json.Marshal(map[string]any{"model": stubModel, "prompt": tokens, "max_tokens": 4, "stream": true})
	if err != nil {
		return err
	}
	request := cluster.Request{Method: "POST", Path: "/v1/completions", Body: text, Limit: patience}
	if err := b.door.Do(ctx, request, func(answer io.Reader) error { _, err := io.Copy(io.Discard, answer); return err }); err != nil {
		return err
	}
	return cluster.Wait(ctx, 300*time.Millisecond)
}

// tokenFile writes a file with a token of an operator.
func tokenFile(t *testing.T, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte("anna "+token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
