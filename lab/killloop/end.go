package killloop

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// end lets the engines come back and looks for all sealed blocks once more. Then
// it ends the engines, one of them by a kill, and sees that nothing is held any
// more.
func (l *loop) end(ctx context.Context) error {
	err := l.until(ctx, func() (bool, error) {
		stats, err := readStats(ctx, l.agent.admin)
		return stats.Sessions == len(l.engines), err
	})
	if err != nil {
		return fmt.Errorf("the engines come back to the last agent: %w", err)
	}
	if err := l.startChecker(true); err != nil {
		return err
	}
	if err := l.wait(ctx, l.checker, sweepTime, "looking for all sealed blocks"); err != nil {
		return err
	}
	if err := l.checkerResult(); err != nil {
		return err
	}
	if left, unknown := l.ledger.wanted(0, rankless); len(left) > 0 || unknown > 0 {
		return fmt.Errorf("sealed blocks of %d documents were not looked for, and %d blocks are of no document that slots were granted for", len(left), unknown)
	}
	if err := l.stopEngines(ctx); err != nil {
		return err
	}
	if err := l.checkLeaks(ctx); err != nil {
		return err
	}
	l.agent.signal(syscall.SIGTERM)
	return l.wait(ctx, l.agent.process, stopTime, "the agent's end")
}

// stopEngines kills one and asks the others to end.
func (l *loop) stopEngines(ctx context.Context) error {
	l.kill(l.engines[0])
	l.bury()
	for _, e := range l.engines[1:] {
		if err := e.stdin.Close(); err != nil {
			return fmt.Errorf("stop %s: %w", e.name, err)
		}
	}
	for _, e := range l.engines[1:] {
		if err := l.wait(ctx, e.process, stopTime, e.name+"'s end"); err != nil {
			return err
		}
		if e.err != nil {
			return fmt.Errorf("%s: %w", e.name, e.err)
		}
		l.ledger.engineEnded(e.name, e.ended)
	}
	return nil
}

// checkLeaks waits until the agent has noticed that everybody is gone.
func (l *loop) checkLeaks(ctx context.Context) error {
	var leaks []string
	err := l.until(ctx, func() (bool, error) {
		stats, err := readStats(ctx, l.agent.admin)
		leaks = stats.leaks()
		return len(leaks) == 0, err
	})
	if !errors.Is(err, errTooLong) {
		return err
	}
	for _, leak := range leaks {
		l.ledger.fault(faultLeak, 1, "%s", leak)
	}
	return nil
}

// errTooLong: what was waited for did not come.
var errTooLong = errors.New("it takes too long")

// until waits for a condition; errTooLong when that lasts longer than settleTime.
func (l *loop) until(ctx context.Context, holds func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleTime, errTooLong)
	defer cancel()
	for {
		ok, err := holds()
		switch {
		case ok || err != nil:
			return err
		case !pause(ctx, 5*time.Millisecond):
			return context.Cause(ctx)
		}
	}
}
