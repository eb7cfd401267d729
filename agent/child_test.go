package agent_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/blockyard-ai/blockyard/agent"
	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

const (
	// agentVariable makes the test binary an agent that serves until it is killed.
	// Its value is the configuration in JSON.
	agentVariable = "BLOCKYARD_TEST_AGENT"
	// filesVariable is how many file descriptors that agent may have.
	filesVariable = "BLOCKYARD_TEST_FILES"
	// engineVariable makes it an engine that is granted 4 slots, prints its session
	// and keeps them until its standard input ends. Its value is the agent's
	// socket.
	engineVariable = "BLOCKYARD_TEST_HOLDER"
)

func runAgentChild() int {
	var cfg agent.Config
	err := json.Unmarshal([]byte(os.Getenv(agentVariable)), &cfg)
	if n, convErr := strconv.ParseUint(os.Getenv(filesVariable), 10, 32); err == nil && convErr == nil {
		err = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n})
	}
	if err == nil {
		var a *agent.Agent
		if a, err = agent.New(context.Background(), cfg, nil); err == nil {
			fmt.Println(a.AdminAddr())
			err = a.Run(context.Background())
		}
	}
	fmt.Println("failed:", err)
	return 1
}

func runEngineChild() int {
	c, err := proto.DialScheduler(context.Background(), proto.ClientOptions{Socket: os.Getenv(engineVariable), Hello: agenttest.Hello(9)})
	if err == nil {
		r := proto.RequestID{ID: 1}
		if err = c.Open(r, "", "", "", agenttest.Prompt(9, 4)); err == nil {
			_, err = c.Store(context.Background(), r, 0, 4)
		}
	}
	if err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	fmt.Println(c.Welcome().Session)
	io.Copy(io.Discard, os.Stdin)
	return 0
}

// child is a running copy of the test binary, and the first line that it wrote.
type child struct {
	cmd  *exec.Cmd
	line string
}

func startChild(t *testing.T, variable, value string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), variable+"="+value)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil { // it ends with us
		t.Fatal(err)
	}
	agenttest.NoError(t, cmd.Start())
	c := &child{cmd: cmd}
	t.Cleanup(c.kill)
	scan := bufio.NewScanner(stdout)
	if !scan.Scan() {
		t.Fatalf("the child wrote nothing: %v", scan.Err())
	}
	c.line = scan.Text()
	return c
}

// kill ends the child as kill -9 does and waits for its end. Further calls do
// nothing.
func (c *child) kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill() // it may have ended
		_ = c.cmd.Wait()
	}
}

// agentChild is an agent in a process of its own.
type agentChild struct {
	*child
	client testAgent // to connect to it; it has no Agent
}

func startAgentChild(t *testing.T, cfg agent.Config) *agentChild {
	t.Helper()
	value, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &agentChild{startChild(t, agentVariable, string(value)), testAgent{Socket: agenttest.Socket(cfg.Socket), cfg: cfg}}
}

// waitQuiet waits until nothing is pending in the agent: all is sealed and on
// disk.
func (a *agentChild) waitQuiet(t *testing.T) {
	t.Helper()
	agenttest.Eventually(t, "the agent is quiet", func() bool {
		var s struct{ Quiet bool }
		status, body := getFrom(t, a.line, "/v1/stats")
		return status == 200 && json.Unmarshal([]byte(body), &s) == nil && s.Quiet
	})
}

// startHolder runs an engine that holds 4 granted slots of the agent, and returns
// its session.
func (a *agentChild) startHolder(t *testing.T) (*child, uint64) {
	t.Helper()
	c := startChild(t, engineVariable, string(a.client.Socket))
	session, err := strconv.ParseUint(c.line, 10, 64)
	if err != nil {
		t.Fatalf("the engine says %q", c.line)
	}
	return c, session
}
