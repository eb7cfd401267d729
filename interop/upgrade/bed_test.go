package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// waitLimit bounds each wait, pollInterval is the time between two checks.
	waitLimit    = 60 * time.Second
	pollInterval = 20 * time.Millisecond

	blockSize = 16
	// A prompt has 8 blocks, and the device holds two prompts.
	promptBlocks, deviceBlocks = 8, 20
)

// version is one of the versions that are tested together.
type version string

const this, previous version = "this", "previous"

// bed is a set of directories in which processes of both versions run.
type bed struct {
	t    *testing.T
	ctx  context.Context
	runs map[version]*cluster.Cluster
}

// newBed returns a bed without processes. The test is skipped when the programs of a version are not
// named. It fails when both programs have the same version.
func newBed(t *testing.T) *bed {
	t.Helper()
	dirs := newDirs(t)
	return newBedAt(t, dirs, "")
}

// newDirs returns directories for the processes of a bed, until the end of the test.
func newDirs(t *testing.T) *cluster.Dirs {
	t.Helper()
	dirs, err := cluster.MakeDirs("upgrade", "", "", 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dirs.Remove(false); err != nil {
			t.Error(err)
		}
	})
	return dirs
}

// newBedAt returns a bed like newBed in directories of the caller. Agents publish to the NATS server with
// the URL nats, and routers read from there; an empty nats is no server.
func newBedAt(t *testing.T, dirs *cluster.Dirs, nats string) *bed {
	t.Helper()
	b := &bed{t: t, ctx: t.Context(), runs: make(map[version]*cluster.Cluster)}
	versions := make(map[version]string)
	for v, variable := range map[version]string{this: "BLOCKYARD_BIN", previous: "BLOCKYARD_TEST_PREVIOUS"} {
		dir := os.Getenv(variable)
		if dir == "" {
			t.Skipf("%s names no programs: make test-ops", variable)
		}
		versions[v] = programVersion(t, filepath.Join(dir, "blockyard"))
		c := cluster.New(cluster.Options{Dirs: dirs, Name: "upgrade", NATSURL: nats,
			Programs: cluster.Programs{Product: filepath.Join(dir, "blockyard"), Lab: filepath.Join(dir, "blockyard-lab")}})
		b.runs[v] = c
		t.Cleanup(func() {
			if unclean := c.Close(20 * time.Second); len(unclean) > 0 {
				t.Errorf("processes of %s did not end in order: %q", v, unclean)
			}
			if t.Failed() && v == this {
				b.showLogs(dirs.Logs)
			}
		})
	}
	if versions[this] == versions[previous] {
		t.Fatalf("both programs have version %q: want an earlier version as REF", versions[this])
	}
	return b
}

// programVersion returns the first line of "blockyard version".
func programVersion(t *testing.T, program string) string {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), program, "version").Output()
	if err != nil {
		t.Fatalf("%s version: %v", program, err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

// showLogs prints the ends of all logs.
func (b *bed) showLogs(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		b.t.Logf("%s:\n%s", filepath.Base(f), text[max(0, len(text)-3000):])
	}
}

// ok ends the test at an error.
func (b *bed) ok(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// agent starts an agent of a version, with flags.
func (b *bed) agent(v version, node string, flags ...string) *cluster.Agent {
	b.t.Helper()
	a, err := b.runs[v].StartAgent(b.ctx, cluster.AgentOptions{Node: node, HostBytes: 16 << 20, DiskBytes: 16 << 20, ExtentBytes: 1 << 20, Flags: flags})
	b.ok(err)
	return a
}

// engine starts a simulated engine of a version at an agent.
func (b *bed) engine(v version, worker uint64, a *cluster.Agent) *cluster.Engine {
	b.t.Helper()
	e, err := b.runs[v].StartEngine(b.ctx, cluster.EngineOptions{Worker: worker, Socket: a.Socket, BlockSize: blockSize, DeviceBlocks: deviceBlocks, SpeedUp: 100})
	b.ok(err)
	return e
}

// stop ends a process by SIGTERM, and checks that it ends in order.
func (b *bed) stop(p *cluster.Process) {
	b.t.Helper()
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.Done():
	case <-time.After(waitLimit):
		b.t.Fatalf("%s does not end", p.Name)
	}
	if _, err := p.Result(); err != nil {
		b.t.Errorf("%s: %v", p.Name, err)
	}
}

// until waits until a condition holds.
func (b *bed) until(what string, done func() (bool, error)) {
	b.t.Helper()
	if err := cluster.Until(b.ctx, waitLimit, pollInterval, done); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// prompt returns the tokens of a prompt: whole blocks and one token more.
func prompt(n int) []uint32 {
	tokens := make([]uint32, promptBlocks*blockSize+1)
	for i := range tokens {
		tokens[i] = uint32(n<<16 + i)
	}
	return tokens
}

// generate sends a prompt to an engine and returns where its tokens came from. The engine checks the
// bytes of each block that it loads, and answers with an error when some are wrong.
func generate(ctx context.Context, e *cluster.Engine, n int) (served engine.Served, err error) {
	var events []engine.GenerateEvent
	id := fmt.Sprintf("r-%d-%d", n, time.Now().UnixNano())
	if err := post(ctx, e, engine.GenerateRequest{RequestID: id, Tokens: prompt(n), OutputTokens: 2}, &events); err != nil {
		return served, err
	}
	done := false
	for _, event := range events {
		switch event.Event {
		case "error":
			return served, errors.New(event.Message)
		case "done":
			done = true
		}
		if event.Served != nil {
			served = *event.Served
		}
	}
	if !done {
		return served, errors.New("the answer has no end")
	}
	return served, nil
}

// store has an engine compute n prompts, and waits until its agent has all of them in both tiers.
func (b *bed) store(e *cluster.Engine, a *cluster.Agent, n int) {
	b.t.Helper()
	for k := range n {
		_, err := generate(b.ctx, e, k)
		b.ok(err)
	}
	b.until("the agent stores the prompts", func() (bool, error) {
		var s cluster.AgentStats
		err := a.Get(b.ctx, "/v1/stats", &s)
		return err == nil && s.Quiet && len(s.Pools) == 1 && s.Pools[0].Host.Inactive >= n*promptBlocks && s.Pools[0].Disk.Inactive >= n*promptBlocks, err
	})
}

// found sends n prompts again, and returns how many of their blocks came from the agent.
func (b *bed) found(e *cluster.Engine, n int) (blocks int) {
	b.t.Helper()
	for k := range n {
		s, err := generate(b.ctx, e, k)
		b.ok(err)
		blocks += (s.Host + s.Disk) / blockSize
	}
	return blocks
}
