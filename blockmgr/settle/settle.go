package settle

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
)

const (
	// firstPause and maxPause bound the pause after a try with something left.
	firstPause = 200 * time.Millisecond
	maxPause   = 10 * time.Second
	// maxTries bounds the tries since the last Begin.
	maxTries = 64
)

// Loop repeats a task. Make one with New.
type Loop struct {
	try    func() (done bool)
	warn   func()
	stop   chan struct{}
	runner sync.WaitGroup
	// wake ends a long pause early. Begin fills it, beginTry empties it.
	wake chan struct{}
	// gaveUp is true after the last try in vain. givenUp counts such ends.
	gaveUp  atomic.Bool
	givenUp atomic.Uint64

	mu sync.Mutex
	// settled is nil while nothing runs. again: Begin was called since the last try began. warned: warn was
	// called since the task was done. closed: Close was called.
	settled               chan struct{}
	again, warned, closed bool
}

// New returns a loop around try, which does what can be done now and says whether all is done. warn is
// called when the loop gives up.
func New(try func() (done bool), warn func()) *Loop {
	return &Loop{try: try, warn: warn, stop: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// Begin starts the loop, or makes a running loop try again soon. settled is closed when nothing is left, when
// the loop gives up, or by Close.
func (l *Loop) Begin() (settled <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.again = true
	l.gaveUp.Store(false)
	select {
	case l.wake <- struct{}{}:
	default: // the loop has a wake-up to handle
	}
	if l.settled == nil {
		done := make(chan struct{})
		if l.closed {
			close(done)
			return done
		}
		l.settled = done
		l.runner.Go(func() { l.run(done) }) // ends when all is done, or in Close
	}
	return l.settled
}

// Again is Begin if the loop has given up.
func (l *Loop) Again() {
	if l.gaveUp.Load() {
		l.Begin()
	}
}

// GivenUp counts how often the loop has given up.
func (l *Loop) GivenUp() uint64 { return l.givenUp.Load() }

// Close ends the loop and waits for its goroutine. The caller holds no lock that a try takes.
func (l *Loop) Close() {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	l.mu.Unlock()
	if first {
		close(l.stop)
	}
	l.runner.Wait()
}

// run tries until all is done, until the loop gives up, or until Close.
func (l *Loop) run(settled chan struct{}) {
	defer close(settled)
	pauses, tries := backoff.Doubling(firstPause, maxPause), 0
	for {
		if l.beginTry() {
			pauses.Reset()
			tries = 0
		}
		tries++
		last := tries == maxTries
		l.gaveUp.Store(last) // before the try, so that an Again during it counts
		if l.endTry(l.try(), last) || !l.rest(pauses.NextBackOff()) {
			return
		}
	}
}

// rest waits for the pause, or for firstPause after a Begin. It returns false after Close.
func (l *Loop) rest(d time.Duration) bool {
	pause := time.NewTimer(d)
	defer pause.Stop()
	for wake := l.wake; ; {
		select {
		case <-l.stop:
			return false
		case <-pause.C:
			return true
		case <-wake: // once: a caller that never stops must not keep the loop from its next try
			wake = nil
			pause.Reset(firstPause)
		}
	}
}

// beginTry reports whether Begin was called since the last try began.
func (l *Loop) beginTry() (again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	again, l.again = l.again, false
	select {
	case <-l.wake:
	default:
	}
	return again
}

// endTry reports whether the loop ends: all is done or the try was the last one, and Begin was not called
// during it.
func (l *Loop) endTry(done, last bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.again || !done && !last:
		return false
	case done:
		l.warned = false
		l.gaveUp.Store(false)
	default:
		l.givenUp.Add(1)
		if !l.warned {
			l.warned = true
			l.warn()
		}
	}
	l.settled = nil
	return true
}
