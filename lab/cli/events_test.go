package cli

import (
	"bytes"
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
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Setenv(mainVariable, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
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
	var out, errs bytes.Buffer
	args = append([]string{"bench", "soak-events", "--nats-server=" + nats, "--dir=" + dir, "--host-dir=" + dir}, args...)
	status = New("").Run(t.Context(), args, &out, &errs)
	return status, out.String(), errs.String(), dir
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

func TestEventCommandsRefuseWhatTheyCannotDo(t *testing.T) {
	for args, want := range map[string]int{
		"soak-events --seconds=0": command.ExitUsage, "soak-events --rounds=-1": command.ExitUsage, "soak-events --seconds=NaN": command.ExitUsage,
		"soak-events --dir=/nowhere": command.ExitFailed, "soak-events --nats-server=/nowhere": command.ExitFailed,
		"events --seconds=0": command.ExitUsage, "events --blocks=0": command.ExitUsage, "events --blocks=5": command.ExitUsage,
		"events --rate=1": command.ExitUsage, "events --dir=/nowhere": command.ExitFailed,
	} {
		var out, errs bytes.Buffer
		status := New("").Run(t.Context(), append([]string{"bench"}, strings.Fields(args)...), &out, &errs)
		_, flagName, _ := strings.Cut(args, "--")
		flagName, _, _ = strings.Cut(flagName, "=")
		name := strings.TrimSuffix(flagName, "-server")
		if status != want || !strings.Contains(errs.String(), name) {
			t.Errorf("bench %s: status %d, standard error %q; want %d and %q", args, status, errs.String(), want, name)
		}
	}
}

// A small run of the whole benchmark: every process takes part and nothing is lost
// on the way; the figures themselves are of no interest here.
func TestBenchEventsMeasuresEveryPart(t *testing.T) {
	nats := programs(t)
	dir := t.TempDir()
	var out, errs bytes.Buffer
	status := New("").Run(t.Context(), []string{
		"bench", "events", "--nats-server=" + nats, "--dir=" + dir, "--host-dir=" + dir,
		"--blocks=20000", "--rate=2000", "--seconds=0.2",
	}, &out, &errs)
	if status != 0 {
		t.Errorf("status %d, standard error %q, standard output:\n%s", status, errs.String(), out.String())
	}
	last := regexp.MustCompile(`^bench-events: rate=[1-9]\d* blocks_per_s=[1-9]\d* allocs_per_block=\d+\.\d{3} visible_p99_ms=\d+\.\d\d bytes_per_block=-?\d+\.\d$`)
	if line := lastLine(out.String()); !last.MatchString(line) {
		t.Errorf("last line %q", line)
	}
	if left := leftovers(t, dir); status == 0 && len(left) != 0 {
		t.Errorf("it left %q", left)
	}
}
