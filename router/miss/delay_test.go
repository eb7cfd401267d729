package miss

import (
	"testing"
	"time"
)

// A message is late by how much it was slower than the fastest of the last minute or two. The
// publisher's clock may differ from the router's, and may be set.
func TestDelay(t *testing.T) {
	var d Delay
	begun := time.Unix(1000, 0)
	const clock = 7_000_000 // the publisher's, in milliseconds, at begun
	of := func(sent, arrived time.Duration) time.Duration {
		return d.Of(begun.Add(arrived), uint64(int64(clock)+sent.Milliseconds()))
	}
	for _, c := range []struct{ sent, arrived, want time.Duration }{
		{0, 0, 0},
		{time.Second, time.Second + 30*time.Millisecond, 30 * time.Millisecond},
		{2 * time.Second, 2*time.Second - 10*time.Millisecond, 0},                       // the fastest so far
		{3 * time.Second, 3 * time.Second, 10 * time.Millisecond},                       // now the others are late
		{-time.Hour, 4 * time.Second, time.Hour + 4*time.Second + 10*time.Millisecond},  // the clock is set back
		{-time.Hour + time.Minute, 65 * time.Second, time.Hour + 5010*time.Millisecond}, // and still seems late
		{-time.Hour + 2*time.Minute, 126 * time.Second, time.Second},                    // for less than two minutes
		{-time.Hour + 3*time.Minute, 185 * time.Second, 0},
	} {
		if got := of(c.sent, c.arrived); got != c.want {
			t.Errorf("sent at %v, arrived at %v: late by %v, want %v", c.sent, c.arrived, got, c.want)
		}
	}
	if got := d.Of(begun, 0); got != 0 {
		t.Errorf("a message without a time is late by %v", got)
	}
	d.Of(begun, 1<<64-1) // a clock that makes no sense overflows nothing
}
