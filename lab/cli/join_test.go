package cli

import (
	"regexp"
	"testing"
)

// A small fleet: the router learns every block over the slow link, without a cut.
func TestARouterJoinsOverASlowLink(t *testing.T) {
	nats, dir := programs(t), t.TempDir()
	status, stdout, stderr := runLab(t, "bench", "join", "--agents=4", "--engines=2", "--blocks=600", "--link=1MiB",
		"--nats-server="+nats, "--dir="+dir)
	if status != 0 {
		t.Errorf("status %d, standard error %q, standard output:\n%s", status, stderr, stdout)
	}
	last := regexp.MustCompile(`^bench-join: agents=4 engines=2 memberships=7200 link_mib_s=1 bytes=\d+ join_s=\S+ link_s=\S+ ratio=\S+ peak_mib=\d+ cuts=0$`)
	if line := lastLine(stdout); !last.MatchString(line) {
		t.Errorf("last line %q", line)
	}
	if left := leftovers(t, dir); status == 0 && len(left) != 0 {
		t.Errorf("it left %q", left)
	}
}

// A restarted router knows every block, by the snapshot and the events that it missed, without a question.
func TestARouterStartsFromItsStoredSnapshot(t *testing.T) {
	nats, dir := programs(t), t.TempDir()
	status, stdout, stderr := runLab(t, "bench", "join", "--agents=3", "--engines=2", "--blocks=600", "--link=1MiB", "--restart", "--missed=2",
		"--nats-server="+nats, "--dir="+dir)
	if status != 0 {
		t.Errorf("status %d, standard error %q, standard output:\n%s", status, stderr, stdout)
	}
	for _, want := range []string{
		`bench-join: agents=3 engines=2 memberships=5400 link_mib_s=1 bytes=\d+ join_s=\S+ link_s=\S+ ratio=\S+ peak_mib=\d+ cuts=0`,
		`the router stopped within \S+ s; 9 owners resumed, .* 5400 blocks compared`,
		`bench-restart: agents=3 engines=2 memberships=5400 link_mib_s=1 missed_events=36 bytes=\d+ exact_s=\S+ link_s=\S+ peak_mib=\d+ questions=\d+ cuts=0 wrong=0`,
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(stdout) {
			t.Errorf("it lacks %q:\n%s", want, stdout)
		}
	}
	if left := leftovers(t, dir); status == 0 && len(left) != 0 {
		t.Errorf("it left %q", left)
	}
}
