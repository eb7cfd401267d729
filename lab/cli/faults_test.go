package cli

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
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
	asProgram(t)
	dir = t.TempDir()
	var out, errs bytes.Buffer
	status = New("").Run(ctx, append([]string{"bench", "kill-loop", "--dir=" + dir, "--host-dir=" + dir}, args...), &out, &errs)
	return status, out.String(), errs.String(), dir
}

func TestKilledAgentsLoseNothingAndServeNoWrongByte(t *testing.T) {
	status, stdout, stderr, dir := killLoop(t, t.Context(), "-n", "6")
	if status != 0 {
		t.Errorf("status %d, standard error %q", status, stderr)
	}
	last := regexp.MustCompile(`^kill-loop: kills=6 engine_kills=[1-9]\d* sealed_lost=0 wrong_bytes=0$`)
	if !last.MatchString(lastLine(stdout)) {
		t.Errorf("standard output:\n%s", stdout)
	}
	if left := leftovers(t, dir); status == 0 && len(left) != 0 {
		t.Errorf("it left %q", left)
	}
}

// TestInterruptedRunLeavesNothing: the processes of an interrupted scenario end, and its
// directories are removed.
func TestInterruptedRunLeavesNothing(t *testing.T) {
	asProgram(t)
	for _, args := range []string{"bench kill-loop -n 100 --host-dir=DIR --dir=DIR", "demo --dir=DIR"} {
		dir := t.TempDir()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var out, errs bytes.Buffer
		begin := time.Now()
		status := New("").Run(ctx, strings.Fields(strings.ReplaceAll(args, "DIR", dir)), &out, &errs)
		if took := time.Since(begin); status == 0 || !strings.Contains(errs.String(), "deadline") || took > time.Minute {
			t.Errorf("%s: status %d after %s, standard output %q, standard error %q", args, status, took, out.String(), errs.String())
		}
		if left := leftovers(t, dir); len(left) != 0 {
			t.Errorf("%s: it left %q", args, left)
		}
	}
}

func TestStressOfOneConfigurationEndsWithItsLine(t *testing.T) {
	status, stdout, stderr := runLab(t, "bench", "stress", "--seconds", "0.01", "--seed", "5", "--config", "host-disk", "--dir", t.TempDir())
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	if last := lastLine(stdout); !strings.HasPrefix(last, "stress: ops=") || !strings.HasSuffix(last, " wrong_bytes=0") {
		t.Errorf("the report ends with %q", last)
	}
	if !strings.HasPrefix(stdout, "stress: seed 5,") {
		t.Errorf("the report is %q", stdout)
	}
}
