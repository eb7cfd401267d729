package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/engine"
)

// decision is what a router decides about a prompt without booking it, and the blocks of each worker.
type decision struct {
	Quality     string `json:"-"`
	WorkerID    uint64 `json:"worker_id"`
	Overlap     int    `json:"overlap_blocks"`
	Explanation struct {
		Workers []struct {
			WorkerID uint64 `json:"worker_id"`
			Device   int    `json:"device"`
			Host     int    `json:"host_pinned"`
			Disk     int    `json:"disk"`
		} `json:"workers"`
	} `json:"explanation"`
}

// decisions asks a router about prompts. The error is that of a router that has ended or has no workers.
func decisions(r *cluster.Router, prompts [][]uint32) (all []decision, err error) {
	for _, p := range prompts {
		body, err := json.Marshal(map[string]any{"method": "explain", "tokens": p})
		if err != nil {
			return nil, err
		}
		answer, err := http.Post(r.URL+"/v1/route", "application/json", bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		d := decision{Quality: answer.Header.Get("X-Blockyard-Quality")}
		err = json.NewDecoder(answer.Body).Decode(&d)
		answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("status %d, %v", answer.StatusCode, err)
		}
		all = append(all, d)
	}
	return all, nil
}

// agree waits until two routers decide the same, by exact indexes, with blocks of every prompt at its worker.
func agree(t *testing.T, served, asking *cluster.Router, prompts [][]uint32) {
	t.Helper()
	waittest.Pass(t, func() string {
		want, err := decisions(served, prompts)
		if err != nil {
			return err.Error()
		}
		for i, d := range want {
			if d.Quality != "exact" || d.Overlap == 0 || d.WorkerID != uint64(i%2)+1 {
				return fmt.Sprintf("the router with the index, prompt %d: %+v", i, d)
			}
		}
		got, err := decisions(asking, prompts)
		if err != nil {
			return err.Error()
		}
		return gocmp.Diff(want, got)
	})
}

// TestARemoteIndexDecidesAsTheServedOne: a router without events, which asks a router process for its index, decides as that one does. It
// goes on by load alone while that process is dead, and decides the same again when another one serves.
func TestARemoteIndexDecidesAsTheServedOne(t *testing.T) {
	nats := programs(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := cluster.MakeDirs("blockyard-remote", t.TempDir(), t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.New(cluster.Options{Programs: cluster.Programs{Product: exe, Lab: exe}, NATSServer: nats, Dirs: dirs})
	t.Cleanup(func() {
		c.Close(0)
		if err := dirs.Remove(false); err != nil {
			t.Error(err)
		}
	})
	ctx := t.Context()
	start := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = c.StartNATS(ctx)
	start(err)
	a, err := c.StartAgent(ctx, cluster.AgentOptions{Node: "node-1", HostBytes: 1 << 20, DiskBytes: 1 << 20, ExtentBytes: 256 << 10})
	start(err)
	served, err := c.StartNamedRouter(ctx, "served", "--serve-indexer")
	start(err)
	asking, err := c.StartNamedRouter(ctx, "asking", "--use-remote-indexer")
	start(err)
	prompts := make([][]uint32, 8) // of the workers in turn
	for w := range uint64(2) {
		e, err := c.StartEngine(ctx, cluster.EngineOptions{Worker: w + 1, Socket: a.Socket, BlockSize: 16, DeviceBlocks: 512, SpeedUp: 50, Seed: w})
		start(err)
		defer e.Kill()
		for n := range uint64(4) {
			prompt := make([]uint32, 16*(4+3*n)+1)
			for i := range prompt {
				prompt[i] = uint32(1000*(w+2*n) + uint64(i))
			}
			start(e.Post(ctx, "/v1/generate", engine.GenerateRequest{RequestID: fmt.Sprint(w, n), Tokens: prompt, OutputTokens: 1}, nil))
			prompts[2*n+w] = prompt
		}
	}
	agree(t, served, asking, prompts)

	served.Kill()
	waittest.Pass(t, func() string {
		got, err := decisions(asking, prompts)
		if err != nil {
			return err.Error()
		}
		for i, d := range got {
			if d.Quality != "fallback" || d.Overlap != 0 {
				return fmt.Sprintf("nobody has an index, prompt %d: %+v", i, d)
			}
		}
		return ""
	})
	served, err = c.StartNamedRouter(ctx, "served-again", "--serve-indexer")
	start(err)
	agree(t, served, asking, prompts)
	checkRemoteMetrics(t, asking)
}

// checkRemoteMetrics checks that a router has no index of its own, and has counted questions and failures.
func checkRemoteMetrics(t *testing.T, r *cluster.Router) {
	t.Helper()
	answer, err := http.Get(r.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(answer.Body); err != nil {
		t.Fatal(err)
	}
	value := func(name string) (n float64) {
		for line := range bytes.Lines(text.Bytes()) {
			if _, err := fmt.Sscanf(string(line), "blockyard_router_"+name+" %g", &n); err == nil {
				return n
			}
		}
		t.Errorf("/metrics lacks %s", name)
		return -1
	}
	if held, asked, failed := value("index_memberships"), value("remote_indexer_queries_total"), value("remote_indexer_failures_total"); held != 0 || asked < 16 || failed == 0 {
		t.Errorf("%g memberships, %g questions, %g failures", held, asked, failed)
	}
}
