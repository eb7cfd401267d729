package engine

import (
	"context"
	"errors"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// statsInterval is how often an engine tells its agent how it stands.
const statsInterval = time.Second

var errStarting = errors.New("the engine's pool is not there yet")

// inCore runs f in the core's goroutine and returns what it did.
func inCore[T any](ctx context.Context, c *core, f func() T) (result T, err error) {
	done := make(chan T, 1)
	c.post(func() { done <- f() })
	select {
	case result = <-done:
		return result, nil
	case <-c.ended:
		return result, errStopping
	case <-ctx.Done():
		return result, ctx.Err()
	}
}

// attend lets the session answer for c.
func (s *session) attend(c *core) { s.engine.Store(c) }

// cached lists what the pool holds, as of one moment between two steps: what its
// events have told by then and those that are about to be sent.
func (s *session) cached(ctx context.Context) ([]kv.EngineHash, error) {
	c := s.engine.Load()
	if c == nil {
		return nil, errStarting
	}
	return inCore(ctx, c, func() []kv.EngineHash { return c.pool.list() })
}

// report sends STATS over a link until ctx ends: how the engine stands, and what it
// has counted since the link began.
func (s *session) report(ctx context.Context, l *liveLink) {
	began := s.ctr.snapshot()
	tick := time.NewTicker(statsInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		c := s.engine.Load()
		if c == nil {
			continue
		}
		now, err := inCore(ctx, c, c.snapshotStats)
		if err != nil || l.sched.Report(statsSince(&began, &now)) != nil {
			return // the engine or the connection has ended
		}
	}
}

// statsSince is STATS for what was counted since began.
func statsSince(began, now *Stats) proto.Stats {
	return proto.Stats{
		Lookups:           now.Lookups - began.Lookups,
		LoadedBlocks:      now.BlocksLoaded - began.BlocksLoaded,
		StoredBlocks:      now.BlocksStored - began.BlocksStored,
		DroppedStores:     now.StoresRefused + now.StoresFailed + now.StoresOverflow - began.StoresRefused - began.StoresFailed - began.StoresOverflow,
		DeviceBlocksTotal: uint64(now.DeviceBlocks),
		DeviceBlocksUsed:  uint64(now.DeviceBlocks - now.DeviceFree),
		RunningRequests:   uint64(now.RequestsRunning),
		WaitingRequests:   uint64(now.RequestsWaiting),
	}
}
