package killloop

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// end lets the engines come back and looks for all sealed blocks once more. Then
// it ends the engines, one of them by a kill, and sees that nothing is held any
// more.
func (l *loop) end(ctx context.Context) error {
	err := l.until(ctx, func() (bool, error) {
		stats, err := l.stats(ctx)
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
	l.agent.Signal(syscall.SIGTERM)
	return l.wait(ctx, l.agent.Process, stopTime, "the agent's end")
}

// stopEngines kills one and asks the others to end.
func (l *loop) stopEngines(ctx context.Context) error {
	l.kill(l.engines[0])
	l.bury()
	for _, e := range l.engines[1:] {
		if err := e.Stdin.Close(); err != nil {
			return fmt.Errorf("stop %s: %w", e.Name, err)
		}
	}
	for _, e := range l.engines[1:] {
		if err := l.wait(ctx, e.Process, stopTime, e.Name+"'s end"); err != nil {
			return err
		}
		ended, err := e.Result()
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
		l.ledger.engineEnded(e.Name, ended)
	}
	return nil
}

// checkLeaks waits until the agent has noticed that everybody is gone.
func (l *loop) checkLeaks(ctx context.Context) error {
	var held []string
	err := l.until(ctx, func() (bool, error) {
		stats, err := l.stats(ctx)
		held = leaks(&stats)
		return len(held) == 0, err
	})
	if !errors.Is(err, cluster.ErrTooLong) {
		return err
	}
	for _, leak := range held {
		l.ledger.fault(faultLeak, 1, "%s", leak)
	}
	return nil
}

// until waits for a condition, settleTime at most.
func (l *loop) until(ctx context.Context, holds func() (bool, error)) error {
	return cluster.Until(ctx, settleTime, 5*time.Millisecond, holds)
}
