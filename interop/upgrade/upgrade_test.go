package upgrade

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/engine"
)

// prompts are more than a device holds, so that blocks come back from the agent.
const prompts = 6

// post sends a request to an engine and decodes the lines of its answer.
func post(ctx context.Context, e *cluster.Engine, body engine.GenerateRequest, into *[]engine.GenerateEvent) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return e.Do(ctx, cluster.Request{Method: "POST", Path: "/v1/generate", Body: raw, ID: body.RequestID}, func(r io.Reader) error {
		text, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(text) {
			var event engine.GenerateEvent
			if err := json.Unmarshal(line, &event); err != nil {
				return fmt.Errorf("line %q: %w", line, err)
			}
			*into = append(*into, event)
		}
		return nil
	})
}

// overlap returns how many blocks of a prompt the router believes its best worker to have.
func (b *bed) overlap(r *cluster.Router, n int) (blocks float64, err error) {
	id := fmt.Sprintf("overlap-%d", n)
	var answer struct {
		Overlap float64 `json:"overlap_blocks"`
	}
	if err := r.Post(b.ctx, "/v1/route", map[string]any{"method": "new", "request_id": id, "tokens": prompt(n)}, &answer); err != nil {
		return 0, err
	}
	return answer.Overlap, r.Post(b.ctx, "/v1/route", map[string]any{"method": "mark_free", "request_id": id}, nil)
}

// TestPairs: agent, engine and router of both versions work together in each mix: blocks are stored
// and found with right bytes, and the router knows them over the agent's events.
func TestPairs(t *testing.T) {
	for mix := 1; mix < 7; mix++ { // 0 and 7 are no mix
		v := [3]version{}
		for k := range v {
			v[k] = [2]version{this, previous}[mix>>k&1]
		}
		t.Run(fmt.Sprintf("agent %s engine %s router %s", v[0], v[1], v[2]), func(t *testing.T) {
			b := newBed(t)
			a := b.agent(v[0], "n1")
			e := b.engine(v[1], 7, a)
			r, err := b.runs[v[2]].StartRouter(b.ctx, "--agents="+a.URL)
			b.ok(err)
			b.store(e, a, prompts)
			const want = prompts*promptBlocks - deviceBlocks // what the device cannot hold
			if got := b.found(e, prompts); got < want {
				t.Errorf("%d blocks came from the agent, want %d or more", got, want)
			}
			b.until("the router knows a prompt", func() (bool, error) {
				got, err := b.overlap(r, 0)
				return got > 0, ignoreUnready(err)
			})
		})
	}
}

// ignoreUnready returns nil for the error of a router that knows no worker yet.
func ignoreUnready(err error) error {
	if err != nil && strings.Contains(err.Error(), "503") {
		return nil
	}
	return err
}

// TestTiers: an agent finds every block in the tiers of the other version, in both directions. A version
// that changes the format of a tier changes this test too.
func TestTiers(t *testing.T) {
	for _, from := range []version{previous, this} {
		to := map[version]version{previous: this, this: previous}[from]
		t.Run(fmt.Sprintf("%s then %s", from, to), func(t *testing.T) {
			b := newBed(t)
			a := b.agent(from, "n1")
			e := b.engine(from, 7, a)
			b.store(e, a, prompts)
			b.stop(e.Process)
			b.stop(a.Process)
			a = b.agent(to, "n1")
			e = b.engine(to, 8, a)
			if got := b.found(e, prompts); got != prompts*promptBlocks {
				t.Errorf("%d blocks were found again, want %d", got, prompts*promptBlocks)
			}
		})
	}
}

// TestSnapshots: a router starts with the snapshot that a router of the other version stored in
// JetStream, in both directions. A version that changes the format of the snapshot changes this test too.
func TestSnapshots(t *testing.T) {
	for _, from := range []version{previous, this} {
		to := map[version]version{previous: this, this: previous}[from]
		t.Run(fmt.Sprintf("%s then %s", from, to), func(t *testing.T) {
			b := newBed(t)
			a := b.agent(this, "n1", "--embedded-nats=127.0.0.1:0", "--embedded-nats-dir="+t.TempDir(), "--durable-kv-events")
			e := b.engine(this, 7, a)
			router := func(v version) *cluster.Router {
				r, err := b.runs[v].StartNamedRouter(b.ctx, "router-"+string(v), "--nats-file="+a.Socket+".nats", "--router-durable-kv-events")
				b.ok(err)
				b.until("the router knows a prompt", func() (bool, error) {
					got, err := b.overlap(r, 0)
					return got > 0, ignoreUnready(err)
				})
				return r
			}
			b.store(e, a, prompts)
			b.stop(router(from).Process)
			r := router(to)
			if got := b.metric(r, "blockyard_router_snapshots_loaded_total"); got != "1" {
				t.Errorf("%s snapshots were loaded, want 1", got)
			}
			b.stop(r.Process)
		})
	}
}

// metric returns the value of a metric without labels.
func (b *bed) metric(r *cluster.Router, name string) (value string) {
	b.t.Helper()
	b.ok(r.Do(b.ctx, cluster.Request{Method: "GET", Path: "/metrics"}, func(in io.Reader) error {
		text, err := io.ReadAll(in)
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, name+" "); ok {
				value = strings.TrimSpace(rest)
			}
		}
		return err
	}))
	return value
}

// TestRollingRestart: the agents of two nodes are replaced in turn, under engines that go on and send
// requests without a pause. No request fails, and each engine finds blocks at its new agent.
func TestRollingRestart(t *testing.T) {
	for _, c := range []struct{ from, to version }{{this, this}, {previous, this}, {this, previous}} {
		t.Run(fmt.Sprintf("%s to %s", c.from, c.to), func(t *testing.T) {
			b := newBed(t)
			ctx, end := context.WithCancel(b.ctx)
			defer end()
			var sent, lost atomic.Int64
			var running sync.WaitGroup
			var agents [2]*cluster.Agent
			var found [2]atomic.Int64 // blocks from the agent
			for k := range agents {
				node := fmt.Sprintf("n%d", k)
				agents[k] = b.agent(c.from, node)
				e := b.engine(c.from, uint64(7+k), agents[k])
				b.store(e, agents[k], prompts)
				running.Go(func() {
					for n := 0; ctx.Err() == nil; n = (n + 1) % prompts {
						s, err := generate(b.ctx, e, n)
						sent.Add(1)
						if err != nil {
							lost.Add(1)
							t.Errorf("%s: %v", e.Endpoint.Name, err)
						}
						found[k].Add(int64(s.Host+s.Disk) / blockSize)
					}
				})
			}
			defer running.Wait()
			defer end()
			for k := range agents {
				b.stop(agents[k].Process)
				agents[k] = b.agent(c.to, agents[k].Node)
				found[k].Store(0)
				b.until("the engine finds blocks at its new agent", func() (bool, error) { return found[k].Load() >= promptBlocks, nil })
			}
			end()
			running.Wait()
			t.Logf("%d requests, %d lost", sent.Load(), lost.Load())
			if sent.Load() < 4*prompts {
				t.Errorf("only %d requests were sent", sent.Load())
			}
		})
	}
}
