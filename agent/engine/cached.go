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

// listTimeout bounds how long an engine may take to list its cached hashes, sending included.
const listTimeout = 5 * time.Second

var (
	errCannotList  = errors.New("the engine's connector does not list its cached hashes")
	errUnavailable = errors.New("the engine says that its cached hashes are not available")
)

// cachedLists asks a scheduler for the hashes in the prefix cache of its device, one list at a
// time, and joins the parts of the answer. The zero value has no scheduler to ask.
type cachedLists struct {
	ask     func(list uint64) error // nil: the connector cannot list
	opened  chan struct{}           // closed when WELCOME has left; no list is asked for before
	asking  chan struct{}           // holds one token while a list is asked for
	dropped func()                  // counts a part of an abandoned list

	mu       sync.Mutex
	lastList uint64       // the number of the last list that was asked for
	current  *pendingList // nil: no list is arriving
}

// pendingList is a list whose parts are arriving.
type pendingList struct {
	list   uint64
	hashes []kv.EngineHash
	err    error
	done   chan struct{} // closed when hashes and err are final
}

func newCachedLists(ask func(list uint64) error, dropped func()) *cachedLists {
	return &cachedLists{ask: ask, opened: make(chan struct{}), asking: make(chan struct{}, 1), dropped: dropped}
}

// askList returns a function that sends LIST_CACHED to the scheduler; nil when HELLO did not
// announce an answer.
func askList(c *proto.Conn, h *proto.Hello) func(list uint64) error {
	if !h.ListsCached {
		return nil
	}
	return func(list uint64) error { return c.Send(proto.TypeListCached, 0, &proto.ListCached{List: list}, nil) }
}

// cachedHashes returns the hashes in the engine's prefix cache: every hash that was cached
// during the whole call, and perhaps others. A hash may come twice. Concurrent calls wait for
// one another, so that each gets a list of its own.
// The error says why there is no list: the connector cannot list, took longer than listTimeout
// or lists more than proto.MaxListed, or the session or ctx ended.
func (s *session) cachedHashes(ctx context.Context) ([]kv.EngineHash, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(errEnded) })()
	return s.lists.get(ctx)
}

// get asks the scheduler for the hashes that the engine has cached on its device, and waits for the
// last part of the list. Calls wait for one another: one list is asked for at a time. The error
// says why there is no list.
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
	case l.asking <- struct{}{}:
		defer func() { <-l.asking }()
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

// open allows lists to be asked for.
func (l *cachedLists) open() { close(l.opened) }

func (l *cachedLists) begin() *pendingList {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastList++
	l.current = &pendingList{list: l.lastList, done: make(chan struct{})}
	return l.current
}

// end ends a list, unless it has ended.
func (l *cachedLists) end(f *pendingList, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(f, err)
}

// endLocked makes f's hashes, or err, the result of get. The caller holds mu.
func (l *cachedLists) endLocked(f *pendingList, err error) {
	if l.current != f { // f has ended
		return
	}
	l.current = nil
	if f.err = err; err != nil {
		f.hashes = nil
	}
	close(f.done)
}

// take adds the hashes of a CACHED frame, a part of a list that get asked for, to the current list.
// The last part ends get's wait. take drops a frame of an abandoned list and refuses a frame of a
// list that was never asked for.
func (l *cachedLists) take(m *proto.Cached) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.current
	switch {
	case m.List > l.lastList:
		return refusal.New(proto.CodeState, "CACHED list: %d was not asked for, the last one is %d", m.List, l.lastList)
	case f == nil || f.list != m.List:
		l.dropped()
		return nil
	case m.Unavailable:
		l.endLocked(f, errUnavailable)
		return nil
	}
	var err error
	if f.hashes, err = proto.ParseHashes(f.hashes, m.Hashes); err != nil {
		return err
	}
	if n := len(f.hashes); n > proto.MaxListed {
		l.endLocked(f, fmt.Errorf("cached hashes: the engine lists more than %d", proto.MaxListed))
	} else if m.Final {
		l.endLocked(f, nil)
	}
	return nil
}
