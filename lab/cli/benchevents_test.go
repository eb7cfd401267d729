package cli

import (
	"bytes"
	"regexp"
	"testing"
)

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
