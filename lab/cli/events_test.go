package cli

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/blockyard-ai/blockyard/internal/command"
)

// natsServerName makes the test binary a nats-server, when it is called that.
const natsServerName = "nats-server"

// serveNATS is the main function of nats-server, if this is one.
func serveNATS() bool {
	if filepath.Base(os.Args[0]) != natsServerName {
		return false
	}
	show := func() { os.Exit(command.ExitUsage) }
	options, err := server.ConfigureOptions(flag.NewFlagSet(natsServerName, flag.ContinueOnError), os.Args[1:], show, show, show)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(command.ExitFailed)
	}
	s, err := server.NewServer(options)
	if err == nil {
		s.ConfigureLogger()
		err = server.Run(s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(command.ExitFailed)
	}
	s.WaitForShutdown()
	return true
}

// programs makes child processes that run this binary run the program, and
// returns a nats-server.
func programs(t *testing.T) (nats string) {
	t.Helper()
	exe := asProgram(t)
	nats = filepath.Join(t.TempDir(), natsServerName)
	if err := os.Symlink(exe, nats); err != nil {
		t.Fatal(err)
	}
	return nats
}

// soakEvents runs the command with its processes' files in a directory of the
// test's own.
func soakEvents(t *testing.T, args ...string) (status int, stdout, stderr, dir string) {
	t.Helper()
	nats := programs(t)
	dir = t.TempDir()
	args = append([]string{"bench", "soak-events", "--nats-server=" + nats, "--dir=" + dir, "--host-dir=" + dir}, args...)
	status, stdout, stderr = runLab(t, args...)
	return status, stdout, stderr, dir
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	return lines[len(lines)-1]
}

// Every fault happens once, and what the router believes is true afterwards.
func TestRouterBelievesTheTruthAfterEveryFault(t *testing.T) {
	status, stdout, stderr, dir := soakEvents(t, "--rounds=2")
	if status != 0 {
		t.Errorf("status %d, standard error %q, standard output:\n%s", status, stderr, stdout)
	}
	last := regexp.MustCompile(`^soak-events: events=[1-9]\d* compared=[1-9]\d* dropped_frames=[1-9]\d* broker_restarts=[1-9]\d* ` +
		`agent_restarts=[1-9]\d* engine_restarts=[1-9]\d* lost=0 diverged=0$`)
	if line := lastLine(stdout); !last.MatchString(line) {
		t.Errorf("last line %q", line)
	}
	if left := leftovers(t, dir); status == 0 && len(left) != 0 {
		t.Errorf("it left %q", left)
	}
}

// A comparison that sees no difference when nothing can be repaired is blind.
func TestSoakWithoutRepairDiverges(t *testing.T) {
	status, stdout, stderr, _ := soakEvents(t, "--rounds=1", "--no-repair")
	if status != command.ExitFailed || !regexp.MustCompile(`diverged=[1-9]`).MatchString(lastLine(stdout)) || !strings.Contains(stderr, "diverged=") {
		t.Errorf("status %d, standard error %q, last line %q", status, stderr, lastLine(stdout))
	}
}

// A small run of the whole benchmark: every process takes part and nothing is lost
// on the way; the figures themselves are of no interest here.
func TestBenchEventsMeasuresEveryPart(t *testing.T) {
	nats := programs(t)
	dir := t.TempDir()
	status, stdout, stderr := runLab(t, "bench", "events", "--nats-server="+nats, "--dir="+dir, "--host-dir="+dir,
		"--blocks=20000", "--rate=2000", "--seconds=0.2")
	if status != 0 {
		t.Errorf("status %d, standard error %q, standard output:\n%s", status, stderr, stdout)
	}
	last := regexp.MustCompile(`^bench-events: rate=[1-9]\d* blocks_per_s=[1-9]\d* allocs_per_block=\d+\.\d{3} visible_p99_ms=\d+\.\d\d bytes_per_block=-?\d+\.\d$`)
	if line := lastLine(stdout); !last.MatchString(line) {
		t.Errorf("last line %q", line)
	}
	if left := leftovers(t, dir); status == 0 && len(left) != 0 {
		t.Errorf("it left %q", left)
	}
}
