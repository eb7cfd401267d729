package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// listTimeout is how long an engine may take to list its cached hashes, the time to
// send them included.
const listTimeout = 5 * time.Second

var (
	errCannotList  = errors.New("the engine's connector does not list its cached hashes")
	errUnavailable = errors.New("the engine says that its cached hashes are not available")
)

// cachedLists asks a scheduler for what its device's prefix cache holds, one list at
// a time, and puts the answers together. The zero value asks nobody.
type cachedLists struct {
	ask     func(list uint64) error // nil: the connector did not say that it can
	opened  chan struct{}           // closed when WELCOME has left, before which nothing may
	turn    chan struct{}           // room for one: the list that is being made
	dropped func()                  // counts a frame of a list that nobody waits for any more

	mu     sync.Mutex
	last   uint64 // the list that was asked for last
	flight *listFlight
}

// listFlight is a list on its way.
type listFlight struct {
	list   uint64
	hashes []kv.EngineHash
	err    error
	done   chan struct{} // closed when hashes and err stay as they are
}

func newCachedLists(ask func(list uint64) error, dropped func()) *cachedLists {
	return &cachedLists{ask: ask, opened: make(chan struct{}), turn: make(chan struct{}, 1), dropped: dropped}
}

// askList sends LIST_CACHED on a scheduler's connection; nil when its HELLO did not
// say that it answers.
func askList(c *proto.Conn, h *proto.Hello) func(list uint64) error {
	if !h.ListsCached {
		return nil
	}
	return func(list uint64) error { return c.Send(proto.TypeListCached, 0, &proto.ListCached{List: list}, nil) }
}

// cachedHashes are the hashes in the engine's prefix cache, as its events have them.
// Every hash that was there from this call until the return is among them; one that
// came or went meanwhile may be, and one may come twice. Calls wait for each other,
// so that each has a list of its own time. The error says why there is no list: the
// connector cannot tell, does not answer within listTimeout, or lists more than
// proto.MaxListed; the session or ctx has ended.
func (s *session) cachedHashes(ctx context.Context) ([]kv.EngineHash, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(errEnded) })()
	return s.lists.get(ctx)
}

func (l *cachedLists) get(ctx context.Context) ([]kv.EngineHash, error) {
	if l.ask == nil {
		return nil, errCannotList
	}
	select {
	case <-l.opened:
	case <-ctx.Done():
		return nil, fmt.Errorf("cached hashes, before WELCOME: %w", context.Cause(ctx))
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("cached hashes, behind another list: %w", context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, listTimeout, fmt.Errorf("not listed within %s", listTimeout))
	defer cancel()
	f := l.begin()
	defer l.end(f, nil)
	if err := l.ask(f.list); err != nil {
		return nil, fmt.Errorf("cached hashes: %w", err)
	}
	select {
	case <-f.done:
		return f.hashes, f.err
	case <-ctx.Done():
		return nil, fmt.Errorf("cached hashes: %w", context.Cause(ctx))
	}
}

// open lets lists be asked for.
func (l *cachedLists) open() { close(l.opened) }

func (l *cachedLists) begin() *listFlight {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	l.flight = &listFlight{list: l.last, done: make(chan struct{})}
	return l.flight
}

// end ends a list, if that has not happened yet.
func (l *cachedLists) end(f *listFlight, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(f, err)
}

func (l *cachedLists) endLocked(f *listFlight, err error) {
	if l.flight != f {
		return
	}
	l.flight = nil
	if f.err = err; err != nil {
		f.hashes = nil
	}
	close(f.done)
}

// take takes a part of a list. Parts of one that is not waited for any more are
// dropped; one that was never asked for is refused.
func (l *cachedLists) take(m *proto.Cached) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.flight
	switch {
	case m.List > l.last:
		return refusal.New(proto.CodeState, "CACHED list: %d was not asked for, the last one is %d", m.List, l.last)
	case f == nil || f.list != m.List:
		l.dropped()
		return nil
	case m.Unavailable:
		l.endLocked(f, errUnavailable)
		return nil
	}
	var err error
	if f.hashes, err = proto.ParseEngineHashes(f.hashes, m.Hashes); err != nil {
		return err
	}
	if n := len(f.hashes); n > proto.MaxListed {
		l.endLocked(f, fmt.Errorf("cached hashes: the engine lists more than %d", proto.MaxListed))
	} else if m.Final {
		l.endLocked(f, nil)
	}
	return nil
}
