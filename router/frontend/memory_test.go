package frontend

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Equal requests of several clients at one dying worker have met one death. A further worker,
// or the same one later, is a second death.
func TestDeathsOfEqualRequests(t *testing.T) {
	one, two := kv.Worker{ID: 1}, kv.Worker{ID: 2}
	start := time.Unix(1000, 0)
	for name, second := range map[string]struct {
		worker kv.Worker
		after  time.Duration
		want   int
	}{
		"the same death":     {one, time.Second, 1},
		"another worker":     {two, time.Second, 2},
		"after the restart":  {one, oneDeath, 2},
		"forgotten long ago": {two, refuseFor, 1},
	} {
		d, f := newDeaths(), fingerprintOf("/v1/completions", []byte("{}"))
		for range 3 {
			if n := d.add(f, one, start); n != 1 {
				t.Fatalf("%d deaths of one worker, want 1", n)
			}
		}
		now := start.Add(second.after)
		if n := d.add(f, second.worker, now); n != second.want {
			t.Errorf("%s: %d deaths, want %d", name, n, second.want)
		}
		if got := d.fatal(f, now); got != (second.want >= fatalDeaths) {
			t.Errorf("%s: fatal is %v", name, got)
		}
	}
}
