package index

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
)

// fake returns a child that answers with a script's output.
func fake(script string) []string { return []string{"/bin/sh", "-c", script} }

// Run measures each part of each log, prints a row for each, and a last line for
// scripts about the last one; the logs it made are gone.
func TestRunPutsTheFiguresTogether(t *testing.T) {
	var out strings.Builder
	dir := t.TempDir()
	err := Run(t.Context(), Options{
		Generate: tinyOptions(), Dir: dir, Rounds: 1, Out: &out, CPU: Unpinned,
		Child: fake(`cat >&2; echo '{"mops": 12.349, "p50_us": 1.231, "p99_us": 4000, "bytes_per_membership": 8.001, "decision_ms": 1.5, "decision_mb": 0}'`),
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := "bench-index: events_mops=12.34 mixed_mops=12.34 lookup_p50_us=1.24 lookup_p99_us=4000.00 busy_p50_us=1.24 busy_p99_us=4000.00" +
		" visible_p99_ms=4.0000 bytes_per_membership=8.01 score240k_ms=1.5000 score240k_mb=0.0000 select10k_us=1.24"
	if last := lines[len(lines)-1]; last != want {
		t.Errorf("last line\n%s, want\n%s", last, want)
	}
	for _, row := range []string{"worst", "unfriendly", "one-block", "generated"} {
		if n := len(regexp.MustCompile(`(?m)^`+row+` +12\.34 +12\.34 +1\.24 +4000\.00 `).FindAllString(out.String(), -1)); n != 1 {
			t.Errorf("%d rows of %s in\n%s", n, row, out.String())
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// A part that fails ends the run with what it said, and no line for scripts is
// printed.
func TestAPartThatFailsEndsTheRun(t *testing.T) {
	for script, want := range map[string]string{
		"echo the answers add up to nothing >&2; exit 1": "score of \"\": exit status 1: the answers add up to nothing",
		"echo nonsense": `answer "nonsense\n"`,
	} {
		var out strings.Builder
		err := Run(t.Context(), Options{Logs: []string{"/nowhere"}, Child: fake("cat >/dev/null; " + script), Out: &out, CPU: Unpinned})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(out.String(), "bench-index:") {
			t.Errorf("%s: error %v, output %q", script, err, out.String())
		}
	}
	err := Run(t.Context(), Options{Logs: []string{"/nowhere"}, Child: []string{"/nowhere/child"}, CPU: Unpinned})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no child: %v", err)
	}
}

// Medians are taken of each figure by itself.
func TestMediansAreOfEachFigure(t *testing.T) {
	got := medians([]Figures{{"a": 3, "b": 1}, {"a": 1, "b": 9}, {"a": 2, "b": 5}})
	if got["a"] != 2 || got["b"] != 5 {
		t.Errorf("medians %v", got)
	}
}
