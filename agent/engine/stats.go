package engine

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/agent/reports"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// Stats is a snapshot of a server.
type Stats struct {
	// Sessions is the number of connected sessions.
	Sessions int
	Engines  SessionStats
	// Connectors are the counters that connectors report of themselves.
	Connectors []reports.Stats
	Cache      CacheStats
}

// SessionStats count the requests of engines, over all sessions since the start.
type SessionStats struct {
	Connections uint64 `json:"connections"`
	Denied      uint64 `json:"denied"`
	Malformed   uint64 `json:"malformed"`
	Frames      uint64 `json:"frames"`
	Refused     uint64 `json:"refused"`
	Lookups     uint64 `json:"lookups"`
	Fits        uint64 `json:"fits"`
	Claims      uint64 `json:"claims"`
	Loads       uint64 `json:"loads"`
	Stores      uint64 `json:"stores"`
	Commits     uint64 `json:"commits"`
	WorkersLost uint64 `json:"workers_lost"`
	// LoadsDropped are LOADs that found a worker's queue full. The agent closes the worker's
	// connection.
	LoadsDropped uint64 `json:"loads_dropped"`
	// AwaitingExit is the number of ended sessions whose granted slots are in quarantine until
	// their processes exit.
	AwaitingExit int `json:"awaiting_exit"`
	// Previous is the number of previous sessions: those of an earlier agent that have not
	// resumed. PreviousStuck are those with a process that cannot be watched.
	Previous      int `json:"former"`
	PreviousStuck int `json:"former_stuck"`
	// Resumed are sessions that came back with RESUME, ResumedGrants and ResumedPins the slots
	// that they kept.
	Resumed       uint64 `json:"resumed"`
	ResumedGrants uint64 `json:"resumed_grants"`
	ResumedPins   uint64 `json:"resumed_pins"`
	// Prefetched are blocks that were read from disk before a LOOKUP asked.
	Prefetched uint64 `json:"prefetched"`
	// LowPriority are blocks that were refused because of their retention priority.
	LowPriority uint64 `json:"low_priority"`
	// Resets are pools that were emptied on RESET.
	Resets uint64 `json:"resets"`
	// Evicted are notices that were sent in EVICTED, EvictedLost those that found a queue
	// full.
	Evicted     uint64 `json:"evicted"`
	EvictedLost uint64 `json:"evicted_lost"`
	// StatsIgnored are STATS that came too soon after the previous one. StatsForgotten are
	// worker ranks whose sums were dropped to make room for other ranks.
	StatsIgnored   uint64 `json:"stats_ignored"`
	StatsForgotten uint64 `json:"stats_forgotten"`
	// ListsDropped are CACHED frames of abandoned lists.
	ListsDropped uint64 `json:"lists_dropped"`
	// Panics are the sessions and connections that a panic ended. The log has the stacks.
	Panics uint64 `json:"panics"`
}

// Stats takes a snapshot, without Evicted and EvictedLost, which the event hub counts.
func (s *Server) Stats() Stats {
	var out Stats
	s.mu.Lock()
	out.Sessions = len(s.byID)
	waiting := 0
	for _, n := range s.awaitingExit {
		waiting += n
	}
	s.mu.Unlock()
	c := &s.sessions
	out.Engines = SessionStats{
		Connections: c.accepted.Load(), Denied: c.denied.Load(), Malformed: c.malformed.Load(),
		Frames: c.frames.Load(), Refused: c.refused.Load(), Lookups: c.lookups.Load(), Fits: c.fits.Load(), Claims: c.claims.Load(),
		Loads: c.loads.Load(), Stores: c.stores.Load(), Commits: c.commits.Load(),
		WorkersLost: c.workersLost.Load(), LoadsDropped: c.loadsDropped.Load(), AwaitingExit: waiting,
		Resumed: s.previous.resumed.Load(), ResumedGrants: s.previous.grants.Load(), ResumedPins: s.previous.pins.Load(),
		Prefetched: c.prefetched.Load(), LowPriority: c.lowPriority.Load(),
		Resets: c.resets.Load(), ListsDropped: c.listsDropped.Load(), Panics: c.panics.Load(),
	}
	out.Connectors, out.Engines.StatsIgnored, out.Engines.StatsForgotten = s.reports.Snapshot()
	out.Engines.Previous, out.Engines.PreviousStuck = s.previous.stats()
	out.Cache = s.cache.snapshot()
	return out
}

// DefaultHitRateRequests is Config.HitRateRequests when it is zero.
const DefaultHitRateRequests = 1000

// requestHits counts the blocks that one request asked for and found. session.mu guards it.
type requestHits struct {
	// asked and matched are the ends of the ranges of blocks that lookups have asked for and
	// found. A repeated lookup counts only blocks behind them.
	asked, matched uint32
	// Hits counts the blocks found by the tier of the first find.
	config.Hits
}

// add counts a lookup of count blocks of a request, from block index first on. The first
// len(sources) of them were found, each in its source's tier. A repeated lookup counts only the
// blocks behind the earlier ones. add returns the number of found blocks that were not counted
// before.
func (h *requestHits) add(first uint32, count int, sources []kv.Tier) (matched int) {
	if end := first + uint32(count); count > 0 && end > h.asked {
		h.Blocks += uint64(end - max(first, h.asked))
		h.asked = end
	}
	for i, tier := range sources {
		if block := first + uint32(i); block >= h.matched {
			h.matched = block + 1
			matched++
			if tier == kv.TierDisk {
				h.Disk++
			} else {
				h.Host++
			}
		}
	}
	return matched
}

// CacheStats count the work that the cache saved its engines.
type CacheStats struct {
	// MatchedTokens counts the tokens whose KV lookups found. A request counts a token once.
	MatchedTokens uint64 `json:"matched_tokens"`
	// OnboardedHost and OnboardedDisk are blocks that went to a device, by the tier that had
	// them.
	OnboardedHost uint64 `json:"onboarded_host"`
	OnboardedDisk uint64 `json:"onboarded_disk"`
	// HostHitRate and DiskHitRate are the shares, 0 to 1, of the blocks asked for that the
	// tier had, over the last Requests ended requests.
	HostHitRate float64 `json:"host_hit_rate"`
	DiskHitRate float64 `json:"disk_hit_rate"`
	Requests    int     `json:"requests"`
}

// cacheCounters count over all sessions. mu is a leaf.
type cacheCounters struct {
	matchedTokens, host, disk atomic.Uint64
	// changed holds one token: a request that asked for blocks has ended.
	changed chan struct{}

	mu    sync.Mutex
	rates config.HitRates // a sample is a request
}

// newCacheCounters makes counters whose hit rates span requests, 0 for the default.
func newCacheCounters(requests int) *cacheCounters {
	requests = cmp.Or(requests, DefaultHitRateRequests)
	return &cacheCounters{rates: config.NewHitRates(requests), changed: make(chan struct{}, 1)}
}

// onboarded counts blocks that workers were told to load.
func (c *cacheCounters) onboarded(pins []pin) {
	for _, p := range pins {
		if p.source == kv.TierDisk {
			c.disk.Add(1)
		} else {
			c.host.Add(1)
		}
	}
}

// finish adds an ended request to the hit rates, unless it asked for nothing.
func (c *cacheCounters) finish(h config.Hits) {
	c.mu.Lock()
	added := c.rates.Add(h)
	c.mu.Unlock()
	if !added {
		return
	}
	select {
	case c.changed <- struct{}{}:
	default: // logRates has not taken the last token
	}
}

// LogHitRates logs the hit rates when they change, at most once in every interval, until ctx
// ends.
func (s *Server) LogHitRates(ctx context.Context, interval time.Duration, log *zap.Logger) {
	s.cache.logRates(ctx, interval, log)
}

// logRates logs the hit rates when they change, at most once in every interval, until ctx ends.
// c.changed wakes it after a request that asked for blocks.
func (c *cacheCounters) logRates(ctx context.Context, interval time.Duration, log *zap.Logger) {
	var last CacheStats
	for {
		select {
		case <-c.changed:
		case <-ctx.Done():
			return
		}
		if s := c.snapshot(); s.HostHitRate != last.HostHitRate || s.DiskHitRate != last.DiskHitRate {
			log.Info("hit rates of the last requests", zap.Float64("host", s.HostHitRate), zap.Float64("disk", s.DiskHitRate), zap.Int("requests", s.Requests))
			last = s
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return
		}
	}
}

// snapshot returns the counters and the hit rates of the last requests. The rates are 0 before
// the first request has ended.
func (c *cacheCounters) snapshot() CacheStats {
	s := CacheStats{MatchedTokens: c.matchedTokens.Load(), OnboardedHost: c.host.Load(), OnboardedDisk: c.disk.Load()}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Requests = c.rates.Samples()
	s.HostHitRate, s.DiskHitRate = c.rates.Rates()
	return s
}

// latestGauges keeps the last gauges of a session.
type latestGauges struct {
	value atomic.Pointer[events.EngineGauges]
}

// take keeps the gauges of STATS, if there are any.
func (b *latestGauges) take(m *proto.Stats) {
	if m.DeviceBlocksTotal == 0 {
		return
	}
	g := events.EngineGauges{
		DeviceBlocks: m.DeviceBlocksTotal, DeviceUsed: m.DeviceBlocksUsed,
		Running: m.RunningRequests, Waiting: m.WaitingRequests,
	}
	if old := b.value.Load(); old == nil || *old != g {
		b.value.Store(&g)
	}
}

// gauges returns the gauges of the scheduler's last STATS; false before the first. An engine
// may leave out gauges that have not changed. Any goroutine may call gauges.
func (s *session) gauges() (events.EngineGauges, bool) {
	g := s.latest.value.Load()
	if g == nil {
		return events.EngineGauges{}, false
	}
	return *g, true
}

// takeStats counts a scheduler's STATS and keeps its gauges, also of STATS that come too soon
// to count.
func (s *session) takeStats(m *proto.Stats) error {
	if err := s.reports.Take(m, time.Now()); err != nil {
		return err
	}
	s.latest.take(m)
	return nil
}
