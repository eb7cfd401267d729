package command

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/waittest"
)

// mainVariable, when set, makes the test binary the program blockyard.
const mainVariable = "COMMAND_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		os.Exit(Product("").Main())
	}
	// Under nohup the processes of the tests would inherit that SIGHUP is ignored, and they leave it so. A
	// signal with a handler is not inherited.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	os.Exit(m.Run())
}

// program is a process of blockyard in a test.
type program struct {
	t     *testing.T
	cmd   *exec.Cmd
	ready map[string]any // the ready line
	done  chan error

	mu    sync.Mutex
	lines []string // of the log
}

// startProgram starts a process of blockyard and waits for its ready line. The process is killed at the
// end of the test when it still runs.
func startProgram(t *testing.T, args ...string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, cmd: exec.Command(self, args...), done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), mainVariable+"=1", "GORACE=atexit_sleep_ms=0")
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		in := bufio.NewScanner(log)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			p.mu.Lock()
			p.lines = append(p.lines, in.Text())
			p.mu.Unlock()
		}
	})
	first := make(chan string, 1)
	reading.Go(func() {
		in := bufio.NewScanner(out)
		in.Scan()
		first <- in.Text()
		for in.Scan() {
		}
	})
	go func() {
		reading.Wait()
		p.done <- p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("log of %q:\n%s", args, p.log())
		}
	})
	if err := json.Unmarshal([]byte(<-first), &p.ready); err != nil {
		t.Fatalf("%q is not ready: %v\n%s", args, err, p.log())
	}
	return p
}

// address returns an address of the ready line.
func (p *program) address(name string) string { s, _ := p.ready[name].(string); return s }

// log returns the log so far.
func (p *program) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// signal sends a signal to the process.
func (p *program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// stop ends the process by SIGTERM, and checks that it ends in order.
func (p *program) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if err := <-p.done; err != nil {
		p.t.Errorf("%q ended with %v\n%s", p.cmd.Args[1:], err, p.log())
	}
}

// awaitLine waits until the log has more than before lines with all texts, and returns their number.
func (p *program) awaitLine(before int, texts ...string) int {
	p.t.Helper()
	found := 0
	waittest.Pass(p.t, func() string {
		found = 0
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, line := range p.lines {
			all := true
			for _, text := range texts {
				all = all && strings.Contains(line, text)
			}
			if all {
				found++
			}
		}
		if found > before {
			return ""
		}
		return strings.Join(texts, ", ") + " is not in the log of " + p.cmd.Args[1]
	})
	return found
}

// shortDir returns a directory whose path is short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "by")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// writeFile replaces a file of a directory and returns its path.
func writeFile(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
