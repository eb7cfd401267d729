package consolidator

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Lost implements sequence.Target. It asks the engine for the list of its blocks. Until the list
// comes the blocks are hidden. They are forgotten when the engine cannot list.
func (l *loop) Lost() {
	if list, ok := l.list(); ok {
		l.log.warn("engine events lost beyond replay: its list of cached blocks is used", zap.Int("cached", len(list)))
		l.cache.Listed(list)
		return
	}
	if l.cfg.Cached != nil {
		l.log.warn("engine events lost beyond replay: its blocks are hidden until it lists what it has")
		l.cache.Hide()
		return
	}
	l.log.warn("engine events lost beyond replay: its blocks are forgotten")
	l.cache.Lost()
}

// listDue returns when listAgain must be called next; zero when no list is wanted.
func (l *loop) listDue() time.Time {
	if !l.cache.WantsList() {
		return time.Time{}
	}
	return l.lists.next
}

// listAgain gets and applies the list, if one is wanted and its time has come.
func (l *loop) listAgain(now time.Time) {
	if !l.cache.WantsList() || now.Before(l.lists.next) {
		return
	}
	if list, ok := l.list(); ok {
		l.log.warn("the engine's list of cached blocks is used", zap.Int("cached", len(list)))
		l.cache.Listed(list)
	}
}

// list returns the engine's list of cached blocks. It returns false when the engine cannot list,
// after a failure, and during the pause after a failure.
func (l *loop) list() ([]kv.EngineHash, bool) {
	if l.cfg.Cached == nil || time.Now().Before(l.lists.failedUntil) {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.cfg.ListTimeout)
	defer cancel()
	list, err := l.cfg.Cached(ctx)
	if err == nil && len(list) > l.cfg.MaxBlocks {
		err = fmt.Errorf("%d hashes, want at most %d", len(list), l.cfg.MaxBlocks)
	}
	if err != nil {
		l.count.listFailures.Add(1)
		l.log.warn("no list of cached blocks", zap.Error(err))
		l.lists.failed(time.Now())
		return nil, false
	}
	l.count.listed.Add(1)
	l.lists.came(time.Now())
	return list, true
}

const (
	// firstListPause doubles from one failed attempt to get a list to the next, up to
	// maxListPause.
	firstListPause = 2 * time.Second
	maxListPause   = 30 * time.Second
	// listInterval is the least time from a list to one that is not urgent.
	listInterval = 10 * time.Second
)

// listTimes say when a rank may ask its engine for the list.
type listTimes struct {
	// failedUntil ends the pause after a failure. next is the earliest time for a list
	// that is not urgent.
	failedUntil, next time.Time
	failures          int // since the last list
}

func (l *listTimes) failed(now time.Time) {
	l.failures++
	l.failedUntil = now.Add(backoff.Nth(backoff.Doubling(firstListPause, maxListPause), l.failures))
	l.next = l.failedUntil
}

func (l *listTimes) came(now time.Time) {
	l.failures, l.next = 0, now.Add(listInterval)
}
