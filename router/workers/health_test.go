package workers

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestHealthFollowsItsRules drives health with random probes, requests and pauses, beside
// a history from which the rules are read again.
func TestHealthFollowsItsRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h health
		now := time.Unix(1000, 0)
		failed := 0
		answered, down, slow := false, false, 0
		var open bool
		var until time.Time
		pause := time.Duration(0)
		count := func() { failed = h.requests(failed, now) }
		t.Repeat(map[string]func(*rapid.T){
			"probe succeeds": func(*rapid.T) {
				h.probed(false, false)
				answered, down, slow = true, false, 0
			},
			"probe fails": func(t *rapid.T) {
				proof := rapid.Bool().Draw(t, "decisive")
				h.probed(true, proof)
				slow++
				down = down || proof || slow >= 3
			},
			"request fails": func(*rapid.T) {
				failed++
				before := failed
				count()
				switch {
				case open && !now.Before(until):
					// The pause is over: this failure is looked at by the next count.
					open = false
					if failed != 4 {
						t.Fatalf("%d failures after the pause, want 4", failed)
					}
				case !open && before >= 5:
					open = true
					pause = min(30*time.Second, max(time.Second, 2*pause))
					until = now.Add(pause)
				}
			},
			"request succeeds": func(*rapid.T) {
				failed, open, pause = 0, false, 0
				count()
			},
			"time passes": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 40_000).Draw(t, "ms")) * time.Millisecond)
				if open && !now.Before(until) {
					open = false
					count()
					if failed != 4 {
						t.Fatalf("%d failures after the pause, want 4", failed)
					}
				}
			},
			"": func(t *rapid.T) {
				want := Ready
				switch {
				case !answered:
					want = Starting
				case down || open:
					want = Unhealthy
				}
				if got := h.state(); got != want {
					t.Fatalf("state %v, want %v", got, want)
				}
				if open != h.open || open && !until.Equal(h.openUntil) {
					t.Fatalf("open %v until %v, want %v until %v", h.open, h.openUntil, open, until)
				}
			},
		})
	})
}

func TestLabelsWithEscapes(t *testing.T) {
	got := map[string]string{}
	labels(`_a="x\"y",b="1\\2\n", c=""} 1.0`, func(name, value string) { got[name] = value })
	for name, want := range map[string]string{"_a": `x"y`, "b": "1\\2\n", "c": ""} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s: %q, want %q", name, v, want)
		}
	}
	for _, broken := range []string{"", "a", `a="`, `a="x`, `="x"`, `a="\`} {
		labels(broken, func(name, value string) {
			if broken != `="x"` {
				t.Errorf("%q: label %q %q", broken, name, value)
			}
		})
	}
}
