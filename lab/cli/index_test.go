package cli

import (
	"bytes"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/command"
)

// A small run of the whole benchmark, on a log that was made before and on those
// that it makes itself: every part measures, all answers are right, nothing is left.
func TestBenchIndexMeasuresEveryPart(t *testing.T) {
	programs(t)
	dir := t.TempDir()
	log := filepath.Join(t.TempDir(), "small.log")
	small := []string{"--engines=4", "--pool=1000", "--requests=100"}
	var out, errs bytes.Buffer
	if status := New("").Run(t.Context(), append([]string{"bench", "index-log", log}, small...), &out, &errs); status != 0 {
		t.Fatalf("status %d, standard error %q", status, errs.String())
	}
	last := regexp.MustCompile(`^bench-index: events_mops=[\d.]+ mixed_mops=[\d.]+ lookup_p50_us=[\d.]+ lookup_p99_us=[\d.]+` +
		` busy_p50_us=[\d.]+ busy_p99_us=[\d.]+ visible_p99_ms=[\d.]+ bytes_per_membership=-?[\d.]+` +
		` score240k_ms=[\d.]+ score240k_mb=[\d.]+ select10k_us=[\d.]+$`)
	for _, flags := range [][]string{{"--log=" + log, "--cpu=0"}, small} {
		out.Reset()
		args := append([]string{"bench", "index", "--rounds=1", "--busy=0.01", "--decisions=2", "--dir=" + dir}, flags...)
		if status := New("").Run(t.Context(), args, &out, &errs); status != 0 {
			t.Fatalf("%q: status %d, standard error %q, standard output:\n%s", flags, status, errs.String(), out.String())
		}
		if line := lastLine(out.String()); !last.MatchString(line) {
			t.Errorf("%q: last line %q", flags, line)
		}
	}
	for _, row := range []string{"\nworst ", "\nunfriendly ", "\ngenerated "} {
		if !strings.Contains(out.String(), row) {
			t.Errorf("no row %q in\n%s", row, out.String())
		}
	}
	if left := leftovers(t, dir); len(left) != 0 {
		t.Errorf("it left %q", left)
	}
}

func TestBenchIndexRefusesBadValuesAsErrorsOfUsage(t *testing.T) {
	for args, want := range map[string]string{
		"index --busy=0":                 "--busy 0",
		"index --rounds=0":               "--rounds 0",
		"index --decisions=0":            "--decisions 0",
		"index --rounds=2":               "rounds 2: want an odd number",
		"index --cpu=-2":                 "cpu -2",
		"index --engines=0":              "--engines 0",
		"index --affinity=2":             "affinity 2",
		"index-log /nowhere/l --chunk=0": "--chunk 0",
		"index-log /nowhere/l --order=x": "--order",
		"soak-index --seconds=0":         "--seconds 0",
		"soak-index --rate=0":            "--rate 0",
	} {
		var stdout, stderr strings.Builder
		status := New("").Run(t.Context(), append([]string{"bench"}, strings.Fields(args)...), &stdout, &stderr)
		if status != command.ExitUsage || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: status %d, standard error %q; want %d and %q", args, status, stderr.String(), command.ExitUsage, want)
		}
	}
}

// A short soak runs from the command line, and its last line is for scripts.
func TestSoakIndexRunsAndPrintsItsLastLine(t *testing.T) {
	var stdout, stderr strings.Builder
	status := New("").Run(t.Context(), []string{
		"bench", "soak-index", "--seconds=0.2", "--sample=0.02", "--rate=20000", "--workers=4", "--pools=2", "--pool=500", "--seed=1",
	}, &stdout, &stderr)
	if status != 0 || stderr.Len() > 0 {
		t.Errorf("status %d, standard error %q", status, stderr.String())
	}
	last := regexp.MustCompile(`^soak-index: blocks_per_s=[1-9]\d* lookups=[1-9]\d* heap_slope_pct_per_min=-?[\d.]+ rss_slope_pct_per_min=-?[\d.]+ digests_ok=6/6$`)
	if line := lastLine(stdout.String()); !last.MatchString(line) {
		t.Errorf("last line %q", line)
	}
}
