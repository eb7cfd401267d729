package diskio

import (
	"testing"
	"time"
)

// TestBusyTimeIsAUnion: operations that overlap are not counted twice, and a pause is
// not counted at all.
func TestBusyTimeIsAUnion(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1, 0).Add(time.Duration(ms) * time.Millisecond) }
	var b BusyTime
	b.Begin(at(0))
	b.Begin(at(4))
	b.End(at(6))
	if got := b.Micros(at(8)); got != 8000 {
		t.Errorf("%d µs while one runs, want 8000", got)
	}
	b.End(at(10))
	if got := b.Micros(at(500)); got != 10000 {
		t.Errorf("%d µs after a pause, want 10000", got)
	}
	b.Begin(at(500))
	b.End(at(501))
	if got := b.Micros(at(600)); got != 11000 {
		t.Errorf("%d µs, want 11000", got)
	}
}
