package cli

import (
	"regexp"
	"testing"
)

// A short run of the whole soak: each kind of process is killed, and all routers agree afterwards.
func TestRoutersAgreeAfterEveryKill(t *testing.T) {
	nats, dir := programs(t), t.TempDir()
	status, stdout, stderr := runLab(t, "soak", "fleet", "--rounds=2", "--seeds=0", "--seed=1", "--patience=60s",
		"--nats-server="+nats, "--dir="+dir, "--host-dir="+dir)
	if status != 0 {
		t.Errorf("status %d, standard error %q, standard output:\n%s", status, stderr, stdout)
	}
	last := regexp.MustCompile(`^soak-fleet: routers=3 kills=6 diverged=0 lost=0 double_booked=0 ttft_vs_one=not_measured ttft_p99_vs_one=not_measured$`)
	if line := lastLine(stdout); !last.MatchString(line) {
		t.Errorf("last line %q", line)
	}
	if left := leftovers(t, dir); status == 0 && len(left) != 0 {
		t.Errorf("it left %q", left)
	}
}
