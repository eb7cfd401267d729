package diskio

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// trip fails as often as it takes to open a breaker.
func (b *Breaker) trip(t *testing.T) {
	t.Helper()
	for range BreakerFailures {
		b.Failed(unix.EIO)
	}
	if open, _ := b.State(); !open || b.Allow() {
		t.Fatal("the breaker did not open")
	}
}

func TestBreakerOpensOnlyAfterFailuresInARow(t *testing.T) {
	b := &Breaker{Log: zap.NewNop()}
	for range 3 {
		for range BreakerFailures - 1 {
			b.Failed(unix.EIO)
		}
		b.Succeeded()
	}
	if open, trips := b.State(); open || trips != 0 || !b.Allow() || b.UntilTry() != 0 {
		t.Errorf("open %v, %d trips", open, trips)
	}
	b.trip(t)
	if _, trips := b.State(); trips != 1 {
		t.Errorf("%d trips", trips)
	}
}

func TestBreakerOpensAtOnceForAStall(t *testing.T) {
	b := &Breaker{Log: zap.NewNop()}
	b.Stalled()
	b.Stalled()
	if open, trips := b.State(); !open || trips != 1 || b.Allow() {
		t.Errorf("open %v, %d trips", open, trips)
	}
}

func TestBreakerLetsOneTryThroughInEachPauseAndPausesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Breaker{Log: zap.NewNop()}
		b.trip(t)
		for _, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			pause *= time.Second
			if got := b.UntilTry(); got != pause {
				t.Errorf("%v until the next try, want %v", got, pause)
			}
			time.Sleep(pause - 1)
			if b.Allow() {
				t.Error("a try before its time")
			}
			time.Sleep(1)
			if !b.Allow() || b.Allow() {
				t.Error("want one try and no second one")
			}
			// All operations of the try fail; they are one failure.
			for range 64 {
				b.Failed(unix.EIO)
			}
			b.Stalled()
		}
		time.Sleep(b.UntilTry())
		if !b.Allow() {
			t.Error("no try")
		}
		b.Succeeded()
		if open, trips := b.State(); open || trips != 1 || !b.Allow() || !b.Allow() {
			t.Errorf("open %v, %d trips after a success", open, trips)
		}
		b.trip(t)
		if got := b.UntilTry(); got != BreakerPause {
			t.Errorf("%v until the next try of another failure", got)
		}
	})
}

func TestTryThatNeverEndsDoesNotKeepOthersFromTrying(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Breaker{Log: zap.NewNop()}
		b.trip(t)
		for range 3 {
			time.Sleep(BreakerPause)
			if !b.Allow() {
				t.Error("no try")
			}
		}
	})
}
