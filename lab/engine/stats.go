package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/lab/engine/zmqpub"
)

// Stats counts the work of an engine since its start.
type Stats struct {
	// Requests that were accepted, refused (queue full, too long, shutting down),
	// finished, given up by their client, and preempted (counted each time).
	Requests  uint64 `json:"requests"`
	Refused   uint64 `json:"refused"`
	Finished  uint64 `json:"finished"`
	Aborted   uint64 `json:"aborted"`
	Preempted uint64 `json:"preempted"`
	// Steps that computed something, and the tokens they computed.
	Steps  uint64 `json:"steps"`
	Tokens uint64 `json:"tokens"`
	// Resets of the prefix cache that were carried out and that were refused.
	Resets        uint64 `json:"resets"`
	ResetsRefused uint64 `json:"resets_refused"`
	// BlocksVerified is how many loaded blocks were compared in full, WrongBytes
	// how many of their bytes differed.
	BlocksVerified uint64 `json:"blocks_verified"`
	WrongBytes     uint64 `json:"wrong_bytes"`
	// Lookups asked, lookups that got no answer, blocks loaded well, and blocks
	// whose load failed or brought wrong bytes. Fits are questions of an engine with KV groups.
	Fits          uint64 `json:"fits,omitempty"`
	Lookups       uint64 `json:"lookups"`
	LookupsFailed uint64 `json:"lookups_failed"`
	BlocksLoaded  uint64 `json:"blocks_loaded"`
	LoadsFailed   uint64 `json:"loads_failed"`
	// Blocks offered for storing: stored, there already, refused by the agent,
	// failed (agent lost), and not even offered because the queue was full.
	BlocksStored   uint64 `json:"blocks_stored"`
	StoresPresent  uint64 `json:"stores_present"`
	StoresRefused  uint64 `json:"stores_refused"`
	StoresFailed   uint64 `json:"stores_failed"`
	StoresOverflow uint64 `json:"stores_overflow"`
	// Sessions with an agent that were opened and dials that failed; requests that
	// were served without an agent's help although one is configured.
	Sessions uint64 `json:"sessions"`
	// Sessions that resumed one of a dead agent, and blocks that were stored in slots
	// of that agent. Those blocks count as failed stores too.
	Resumes       uint64 `json:"resumes"`
	BlocksResumed uint64 `json:"blocks_resumed"`
	DialsFailed   uint64 `json:"dials_failed"`
	Unconnected   uint64 `json:"unconnected"`
	// Stats count event frames.
	zmqpub.Stats
	// Device blocks: all, those without a reference, and distinct contents that
	// are findable. Requests that run and that wait.
	DeviceBlocks    int `json:"device_blocks"`
	DeviceFree      int `json:"device_free"`
	DeviceResident  int `json:"device_resident"`
	RequestsRunning int `json:"requests_running"`
	RequestsWaiting int `json:"requests_waiting"`
}

// counters are Stats that several goroutines count in. The core sets the gauges in
// its copies.
type counters struct {
	mu sync.Mutex
	Stats
}

// add adds n to a field of c.
func (c *counters) add(field *uint64, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*field += n
}

// snapshot returns the counters, gauges zero.
func (c *counters) snapshot() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Stats
}

// statsInterval is the time between two STATS.
const statsInterval = time.Second

var errStarting = errors.New("the engine's pool is not there yet")

// inCore runs f in the goroutine of the scheduler c, which owns the engine's state, and returns the
// result. The error says that the engine or ctx has ended.
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

// attend gives the session the core that it reports on.
func (s *session) attend(c *core) { s.engine.Store(c) }

// cached returns the engine hashes of the pool between two steps. Events about all of
// them have been or are about to be sent.
func (s *session) cached(ctx context.Context) ([]kv.EngineHash, error) {
	c := s.engine.Load()
	if c == nil {
		return nil, errStarting
	}
	return inCore(ctx, c, func() []kv.EngineHash { return c.pool.list() })
}

// report sends the engine's statistics over the link l at every statsInterval until ctx ends:
// gauges, and counters since the link began.
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

// statsSince returns the body of a STATS frame: the counters of now less those of began, and the
// gauges of now.
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
