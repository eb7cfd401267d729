package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// pythonVariable names the environment that scripts/events-env.sh makes.
const pythonVariable = "BLOCKYARD_EVENTS_ENV"

// eventsPython returns a python with what the programs in interop need; the test is
// skipped where there is none.
func eventsPython(t *testing.T) string {
	t.Helper()
	env := os.Getenv(pythonVariable)
	if env == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skipf("no cache directory: %v", err)
		}
		env = filepath.Join(cache, "blockyard-events")
	}
	python := filepath.Join(env, "bin", "python")
	if _, err := os.Stat(python); err != nil {
		t.Skip("no environment for the Python programs: scripts/events-env.sh makes one")
	}
	return python
}

// engineTruth is what interop/zmq/engine.py prints.
type engineTruth struct {
	Dropped int        `json:"dropped"`
	Blocks  [][]uint32 `json:"blocks"`
}

// hashes returns the SequenceHashes of the resident blocks, as 16 hexadecimal digits.
func (e *engineTruth) hashes(blockSize int) []string {
	var hasher kv.Hasher
	list := []string{}
	for _, tokens := range e.Blocks {
		chain := kv.AppendSequence(nil, hasher.AppendLocals(nil, tokens, blockSize, kv.LocalSeed("", "")))
		list = append(list, fmt.Sprintf("%016x", uint64(chain[len(chain)-1])))
	}
	slices.Sort(list)
	return list
}

// consumerView is what interop/nats/consumer.py prints.
type consumerView struct {
	Owners []struct {
		Kind   string
		ID     uint64
		Exact  bool
		Blocks map[string][]string
	}
	Questions int
}

// worker returns what is known of a worker's device, and whether that is exact.
func (v *consumerView) worker(id uint64) (blocks []string, exact bool) {
	for _, o := range v.Owners {
		if o.Kind == "worker" && o.ID == id {
			return o.Blocks["device"], o.Exact
		}
	}
	return nil, false
}

// awaitBlocks asks a consumer until it knows exactly want of worker 1.
func awaitBlocks(t *testing.T, ctx context.Context, consumer *cluster.Process, want []string) consumerView {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var v consumerView
		if err := consumer.Ask(ctx, "what do you know?", &v); err != nil {
			t.Fatal(err)
		}
		blocks, exact := v.worker(1)
		if exact && slices.Equal(blocks, want) {
			return v
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s knows %d blocks, exact: %t, after %d questions; want %d", consumer.Name, len(blocks), exact, v.Questions, len(want))
		}
	}
}

// An engine and a consumer that know of us only what the documents say: frames are
// left out, the broker dies, and one consumer joins late.
func TestPythonConsumerKnowsWhatAPythonEngineHolds(t *testing.T) {
	python := eventsPython(t)
	nats := programs(t)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	dirs, err := cluster.MakeDirs("interop", dir, dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	const name = "interop"
	r := cluster.New(cluster.Options{Name: name, Programs: cluster.Programs{Product: exe, Lab: exe}, NATSServer: nats, Dirs: dirs})
	defer func() {
		r.Close(0)
		if err := dirs.Remove(false); err != nil {
			t.Error(err)
		}
	}()
	broker, err := r.StartNATS(ctx)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := r.StartAgent(ctx, cluster.AgentOptions{Node: "node-1", HostBytes: 1 << 20, ExtentBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	start := func(name, program string, args ...string) *cluster.Process {
		p, err := r.Start(cluster.Spec{
			Name: name, Command: append([]string{python, filepath.Join("..", "..", "interop", program)}, args...), Env: []string{"NATS_URL=" + r.NATSURL()},
		})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	var ready struct{ Ready bool }
	early := start("early", "nats/consumer.py", "--cluster", name)
	if err := early.Next(ctx, &ready); err != nil {
		t.Fatal(err)
	}
	engine := start("engine", "zmq/engine.py", "--socket", agent.Socket, "--block-size", "16", "--batches", "400")
	broker.Kill()
	if _, err := r.StartNATS(ctx); err != nil {
		t.Fatal(err)
	}
	var truth engineTruth
	if err := engine.Next(ctx, &truth); err != nil {
		t.Fatal(err)
	}
	want := truth.hashes(16)
	if truth.Dropped == 0 || len(want) == 0 {
		t.Fatalf("%d frames left out, %d blocks: the run proves nothing", truth.Dropped, len(want))
	}
	late := start("late", "nats/consumer.py", "--cluster", name)
	if err := late.Next(ctx, &ready); err != nil {
		t.Fatal(err)
	}
	awaitBlocks(t, ctx, early, want)
	if v := awaitBlocks(t, ctx, late, want); v.Questions == 0 {
		t.Error("the consumer that joined late asked nothing")
	}
}
