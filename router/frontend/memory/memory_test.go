package memory

import (
	"strconv"
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
		d, f := NewDeaths(), FingerprintOf("/v1/completions", []byte("{}"))
		for range 3 {
			if n := d.Add(f, one, start); n != 1 {
				t.Fatalf("%d deaths of one worker, want 1", n)
			}
		}
		now := start.Add(second.after)
		if n := d.Add(f, second.worker, now); n != second.want {
			t.Errorf("%s: %d deaths, want %d", name, n, second.want)
		}
		if got := d.Fatal(f, now); got != (second.want >= FatalDeaths) {
			t.Errorf("%s: fatal is %v", name, got)
		}
	}
}

// The expected output is the mean of the tenant's answers, of the model's answers for a tenant without
// any, and never more than the request allows.
func TestExpectedOutput(t *testing.T) {
	e := NewLengths()
	if got := e.Expected("a", "m", 0); got != 0 {
		t.Errorf("nothing is known: %d, want 0", got)
	}
	if got := e.Expected("a", "m", 64); got != 64 {
		t.Errorf("the limit alone is known: %d, want 64", got)
	}
	for range 200 {
		e.Learn("short", "m", 10)
		e.Learn("long", "m", 1000)
	}
	e.Learn("short", "m", 0) // an answer without usage
	for _, c := range []struct {
		tenant, model      string
		limit, least, most int
	}{
		{"short", "m", 0, 10, 10}, {"long", "m", 0, 1000, 1000}, {"long", "m", 300, 300, 300}, {"short", "m", 300, 10, 10},
		{"new", "m", 0, 400, 600}, {"short", "other", 0, 0, 0},
	} {
		if got := e.Expected(c.tenant, c.model, c.limit); got < c.least || got > c.most {
			t.Errorf("%s of %s, at most %d: %d, want %d..%d", c.tenant, c.model, c.limit, got, c.least, c.most)
		}
	}
	for i := range 2 * maxLengths {
		e.Learn(strconv.Itoa(i), "m", 1)
	}
	if len(e.means) != maxLengths {
		t.Errorf("%d means are kept, want %d", len(e.means), maxLengths)
	}
}
