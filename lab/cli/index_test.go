package cli

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A small run of the whole benchmark, on a log that was made before and on those
// that it makes itself: every part measures, all answers are right, nothing is left.
func TestBenchIndexMeasuresEveryPart(t *testing.T) {
	asProgram(t)
	dir := t.TempDir()
	log := filepath.Join(t.TempDir(), "small.log")
	small := []string{"--engines=4", "--pool=1000", "--requests=100"}
	if status, _, stderr := runLab(t, append([]string{"bench", "index-log", log}, small...)...); status != 0 {
		t.Fatalf("status %d, standard error %q", status, stderr)
	}
	var rows string
	last := regexp.MustCompile(`^bench-index: events_mops=[\d.]+ mixed_mops=[\d.]+ lookup_p50_us=[\d.]+ lookup_p99_us=[\d.]+` +
		` busy_p50_us=[\d.]+ busy_p99_us=[\d.]+ visible_p99_ms=[\d.]+ bytes_per_membership=-?[\d.]+` +
		` score240k_ms=[\d.]+ score240k_mb=[\d.]+ select10k_us=[\d.]+$`)
	for _, flags := range [][]string{{"--log=" + log, "--cpu=0"}, small} {
		args := append([]string{"bench", "index", "--rounds=1", "--busy=0.01", "--decisions=2", "--dir=" + dir}, flags...)
		status, stdout, stderr := runLab(t, args...)
		if status != 0 {
			t.Fatalf("%q: status %d, standard error %q, standard output:\n%s", flags, status, stderr, stdout)
		}
		rows = stdout
		if line := lastLine(stdout); !last.MatchString(line) {
			t.Errorf("%q: last line %q", flags, line)
		}
	}
	for _, row := range []string{"\nworst ", "\nunfriendly ", "\none-block ", "\ngenerated "} {
		if !strings.Contains(rows, row) {
			t.Errorf("no row %q in\n%s", row, rows)
		}
	}
	if left := leftovers(t, dir); len(left) != 0 {
		t.Errorf("it left %q", left)
	}
}

// A short soak runs from the command line, and its last line is for scripts.
func TestSoakIndexRunsAndPrintsItsLastLine(t *testing.T) {
	status, stdout, stderr := runLab(t,
		"bench", "soak-index", "--seconds=0.2", "--sample=0.02", "--rate=20000", "--workers=4", "--pools=2", "--pool=500", "--seed=1")
	if status != 0 || stderr != "" {
		t.Errorf("status %d, standard error %q", status, stderr)
	}
	last := regexp.MustCompile(`^soak-index: blocks_per_s=[1-9]\d* lookups=[1-9]\d* heap_slope_pct_per_min=-?[\d.]+ rss_slope_pct_per_min=-?[\d.]+ digests_ok=6/6$`)
	if line := lastLine(stdout); !last.MatchString(line) {
		t.Errorf("last line %q", line)
	}
}
