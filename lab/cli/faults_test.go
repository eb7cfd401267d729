package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/command"
)

// mainVariable makes the test binary the program itself.
const mainVariable = "KILL_LOOP_TEST_MAIN"

func TestMain(m *testing.M) {
	if serveNATS() {
		return
	}
	if os.Getenv(mainVariable) != "" {
		os.Exit(New("").Main())
	}
	os.Exit(m.Run())
}

// killLoop runs the command with its processes' files in directories of the
// test's own.
func killLoop(t *testing.T, ctx context.Context, args ...string) (status int, stdout, stderr, dir string) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	t.Setenv(mainVariable, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0") // under the race detector a process lingers for a second by default
	dir = t.TempDir()
	var out, errs bytes.Buffer
	status = New("").Run(ctx, append([]string{"bench", "kill-loop", "--dir=" + dir, "--host-dir=" + dir}, args...), &out, &errs)
	return status, out.String(), errs.String(), dir
}

// leftovers returns the files in a directory.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestKilledAgentsLoseNothingAndServeNoWrongByte(t *testing.T) {
	status, stdout, stderr, dir := killLoop(t, t.Context(), "-n", "6")
	if status != 0 {
		t.Errorf("status %d, standard error %q", status, stderr)
	}
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	last := regexp.MustCompile(`^kill-loop: kills=6 engine_kills=[1-9]\d* sealed_lost=0 wrong_bytes=0$`)
	if !last.MatchString(lines[len(lines)-1]) {
		t.Errorf("last line %q, all of it:\n%s", lines[len(lines)-1], stdout)
	}
	if left := leftovers(t, dir); status == 0 && len(left) != 0 {
		t.Errorf("it left %q", left)
	}
}

func TestInterruptedKillLoopLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	status, stdout, stderr, dir := killLoop(t, ctx, "-n", "100")
	if status == 0 || stdout != "" || !strings.Contains(stderr, "deadline") {
		t.Errorf("status %d, standard output %q, standard error %q", status, stdout, stderr)
	}
	if left := leftovers(t, dir); len(left) != 0 {
		t.Errorf("it left %q", left)
	}
}

func TestKillLoopRefusesWhatItCannotDo(t *testing.T) {
	for flag, want := range map[string]int{
		"--kills=0": command.ExitUsage, "--kills=-1": command.ExitUsage, "--kills=1000000": command.ExitUsage,
		"--dir=/nowhere": command.ExitFailed, "--host-dir=/nowhere": command.ExitFailed,
	} {
		status, _, stderr, dir := killLoop(t, t.Context(), flag)
		if name, _, _ := strings.Cut(flag, "="); status != want || !strings.Contains(stderr, strings.TrimPrefix(name, "--")) {
			t.Errorf("%s: status %d, standard error %q", flag, status, stderr)
		}
		if left := leftovers(t, dir); len(left) != 0 {
			t.Errorf("%s: it left %q", flag, left)
		}
	}
}

func TestStressOfOneConfigurationEndsWithItsLine(t *testing.T) {
	var out, errs bytes.Buffer
	args := []string{"bench", "stress", "--seconds", "0.01", "--seed", "5", "--config", "host-disk", "--dir", t.TempDir()}
	if status := New("").Run(t.Context(), args, &out, &errs); status != 0 {
		t.Fatalf("status %d: %s", status, errs.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "stress: ops=") || !strings.HasSuffix(last, " wrong_bytes=0") {
		t.Errorf("the report ends with %q", last)
	}
	if !strings.HasPrefix(lines[0], "stress: seed 5,") {
		t.Errorf("the report begins with %q", lines[0])
	}
}

func TestStressRefusesAnUnknownConfigurationAsUsage(t *testing.T) {
	var out, errs bytes.Buffer
	status := New("").Run(t.Context(), []string{"bench", "stress", "--config", "nonsense"}, &out, &errs)
	if status != command.ExitUsage || !strings.Contains(errs.String(), `configuration "nonsense": want one of host, `) {
		t.Errorf("status %d: %s", status, errs.String())
	}
}
