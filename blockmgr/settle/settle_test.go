package settle_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/blockmgr/settle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// loop is a Loop whose task has something left until done is set.
type loop struct {
	*settle.Loop
	done            atomic.Bool
	tries, warnings atomic.Int64
}

func newLoop() *loop {
	l := &loop{}
	l.Loop = settle.New(func() bool { l.tries.Add(1); return l.done.Load() }, func() { l.warnings.Add(1) })
	return l
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestTriesUntilAllIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		defer l.Close()
		settled := l.Begin()
		time.Sleep(time.Second)
		synctest.Wait()
		if l.Begin() != settled || closed(settled) || l.tries.Load() != 3 { // at 0, 200 and 600 ms
			t.Errorf("after a second: settled %t, %d tries", closed(settled), l.tries.Load())
		}
		l.done.Store(true)
		<-settled
		tries := l.tries.Load()
		time.Sleep(time.Hour)
		if l.tries.Load() != tries || l.GivenUp() != 0 || l.warnings.Load() != 0 {
			t.Errorf("%d tries after the end, given up %d times", l.tries.Load()-tries, l.GivenUp())
		}
		if again := l.Begin(); again == settled {
			t.Error("a new beginning is settled already")
		} else {
			<-again
		}
	})
}

// A loop whose task never ends gives up, warns once, and begins again when asked to.
func TestGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		defer l.Close()
		l.Again() // has not given up
		synctest.Wait()
		if l.tries.Load() != 0 {
			t.Error("Again begins a loop that has not given up")
		}
		for round := range uint64(3) {
			began := time.Now()
			if round == 0 {
				l.Begin()
			} else {
				l.Again()
			}
			time.Sleep(15 * time.Minute)
			if took := time.Since(began); l.GivenUp() != round+1 || l.tries.Load() != 64*int64(round+1) {
				t.Errorf("round %d: given up %d times in %v, %d tries", round, l.GivenUp(), took, l.tries.Load())
			}
		}
		if n := l.warnings.Load(); n != 1 {
			t.Errorf("%d warnings, want 1", n)
		}
		l.done.Store(true)
		<-l.Begin()
		l.done.Store(false)
		<-l.Begin()
		if n := l.warnings.Load(); n != 2 {
			t.Errorf("%d warnings, want another one after all was done", n)
		}
	})
}

// A loop whose last try succeeds has not given up: Again does not begin it.
func TestLastTrySucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		defer l.Close()
		settled := l.Begin()
		for l.tries.Load() < 63 {
			time.Sleep(time.Second)
		}
		l.done.Store(true)
		<-settled
		l.Again()
		time.Sleep(time.Hour)
		if l.tries.Load() != 64 || l.GivenUp() != 0 {
			t.Errorf("%d tries, given up %d times", l.tries.Load(), l.GivenUp())
		}
	})
}

// A Begin shortens a long pause, and callers that never stop do not keep the loop from its tries.
func TestBeginShortensThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		defer l.Close()
		l.Begin()
		time.Sleep(3 * time.Minute) // pauses of ten seconds
		tries := l.tries.Load()
		for range 100 {
			l.Begin()
			time.Sleep(50 * time.Millisecond)
		}
		if n := l.tries.Load() - tries; n < 10 || n > 30 {
			t.Errorf("%d tries in five seconds", n)
		}
	})
}

func TestCloseEndsTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		settled := l.Begin()
		synctest.Wait()
		l.Close()
		l.Close()
		if !closed(settled) || !closed(l.Begin()) {
			t.Error("a caller waits after Close")
		}
	})
}
