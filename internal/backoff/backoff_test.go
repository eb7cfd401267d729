package backoff

import (
	"testing"
	"time"
)

func TestDoublingPausesGrowToTheLimit(t *testing.T) {
	p := Doubling(time.Second, 5*time.Second)
	for range 2 {
		for i, want := range []time.Duration{1, 2, 4, 5, 5} {
			if got := p.NextBackOff(); got != want*time.Second {
				t.Errorf("pause %d: got %v, want %v", i, got, want*time.Second)
			}
		}
		p.Reset()
	}
	for n, want := range map[int]time.Duration{0: 0, 1: 1, 3: 4, 4: 5, 1 << 30: 5} {
		if got := Nth(p, n); got != want*time.Second {
			t.Errorf("pause %d: got %v, want %v", n, got, want*time.Second)
		}
	}
	short := Doubling(time.Minute, time.Second)
	if got := short.NextBackOff(); got != time.Second {
		t.Errorf("first pause above the limit: got %v, want %v", got, time.Second)
	}
}

func TestJitterShortensAPauseByUpToHalf(t *testing.T) {
	seen := make(map[time.Duration]bool)
	for range 100 {
		p := Jittered(time.Second, 2*time.Second)
		for i, whole := range []time.Duration{time.Second, 2 * time.Second, 2 * time.Second} {
			got := p.NextBackOff()
			if got < whole/2-time.Millisecond || got > whole+time.Millisecond {
				t.Errorf("pause %d: got %v, want %v to %v", i, got, whole/2, whole)
			}
			seen[got] = true
		}
	}
	if len(seen) < 200 {
		t.Errorf("%d different pauses of 300", len(seen))
	}
}
