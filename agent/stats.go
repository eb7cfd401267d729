package agent

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// EventStats count the node's events. In counts what engines and pools said,
// Out the router events of their streams, each once. Gaps are holes in engines'
// sequences; each is Repaired or Lost in the end.
type EventStats struct {
	In        uint64 `json:"in"`
	Out       uint64 `json:"out"`
	Gaps      uint64 `json:"gaps"`
	Repaired  uint64 `json:"repaired"`
	Lost      uint64 `json:"lost"`
	BadFrames uint64 `json:"bad_frames"`
	BadEvents uint64 `json:"bad_events"`
	Restarts  uint64 `json:"restarts" metric:"engine_restarts"`
}

// StreamStats describe one owner's stream.
type StreamStats struct {
	Owner string `json:"owner"`
	// PublisherID is 16 hexadecimal digits; empty when nothing is published.
	PublisherID string         `json:"publisher_id"`
	LastEventID uint64         `json:"last_event_id"`
	Digest      string         `json:"digest"`
	Blocks      uint64         `json:"blocks"`
	Health      kvevent.Health `json:"health"`
	// Dropped are blocks that were not applied, by reason.
	Dropped map[string]uint64 `json:"dropped"`
	// Rank are the counters of the worker rank that the stream is of; nil for a pool
	// and for an engine without events.
	Rank *consolidator.RankStats `json:"rank,omitempty"`
}

// PoolStats describe one pool.
type PoolStats struct {
	Pool      uint64 `json:"pool"`
	Namespace string `json:"namespace"`
	blockmgr.Stats
}

// SessionStats count what engines asked for, over all sessions since the start.
type SessionStats struct {
	Connections uint64 `json:"connections"`
	Denied      uint64 `json:"denied"`
	Malformed   uint64 `json:"malformed"`
	Frames      uint64 `json:"frames"`
	Refused     uint64 `json:"refused"`
	Lookups     uint64 `json:"lookups"`
	Claims      uint64 `json:"claims"`
	Loads       uint64 `json:"loads"`
	Stores      uint64 `json:"stores"`
	Commits     uint64 `json:"commits"`
	WorkersLost uint64 `json:"workers_lost"`
	// LoadsDropped are LOADs that found the queue of a worker full; the worker is
	// then cut off.
	LoadsDropped uint64 `json:"loads_dropped"`
	// AwaitingExit is the number of ended sessions that left granted slots in
	// quarantine and whose processes live on.
	AwaitingExit int `json:"awaiting_exit"`
	// Former is the number of sessions of an earlier agent whose processes live and
	// have not resumed, FormerStuck that of those whose processes cannot be watched.
	Former      int `json:"former"`
	FormerStuck int `json:"former_stuck"`
	// Resumed are sessions that came back with RESUME, ResumedGrants and
	// ResumedPins the slots that they kept.
	Resumed       uint64 `json:"resumed"`
	ResumedGrants uint64 `json:"resumed_grants"`
	ResumedPins   uint64 `json:"resumed_pins"`
	// Prefetched are blocks whose way from disk began before a LOOKUP asked.
	Prefetched uint64 `json:"prefetched"`
	// LowPriority are blocks that were refused for their retention priority.
	LowPriority uint64 `json:"low_priority"`
	// Resets are pools that were emptied because their engine said RESET.
	Resets uint64 `json:"resets"`
	// Evicted are notices of EVICTED, EvictedLost those that found a queue full.
	Evicted     uint64 `json:"evicted"`
	EvictedLost uint64 `json:"evicted_lost"`
	// StatsIgnored are STATS that came too soon after the one before, StatsForgotten
	// the worker ranks whose sums made room for others.
	StatsIgnored   uint64 `json:"stats_ignored"`
	StatsForgotten uint64 `json:"stats_forgotten"`
	// ListsDropped are parts of lists of cached hashes that came when nobody waited
	// for the list any more.
	ListsDropped uint64 `json:"lists_dropped"`
	// Panics are sessions and connections that a panic of the agent ended. The log has
	// the stack of each.
	Panics uint64 `json:"panics"`
}

// Stats is a snapshot of the agent; GET /v1/stats.
type Stats struct {
	Node    string        `json:"node"`
	Events  EventStats    `json:"events"`
	Streams []StreamStats `json:"streams"`
	Pools   []PoolStats   `json:"pools"`
	// Retired are the pools that made room for other namespaces, or are about to: what
	// these and Pools have counted never adds up to less than before.
	Retired  blockmgr.Retired `json:"retired"`
	Sessions int              `json:"sessions"`
	Engines  SessionStats     `json:"engines"`
	// Connectors are what engines say about themselves.
	Connectors []ConnectorStats `json:"connectors"`
	Cache      CacheStats       `json:"cache"`
	// Space is as of the last look, at most ten seconds ago.
	Space   SpaceStats  `json:"space"`
	Totals  EventTotals `json:"totals"`
	Outputs OutputStats `json:"outputs"`
	// Quiet: nothing that somebody asked for is pending anywhere in the agent. Checks
	// of blocks that were found at the start (Stats.Unverified) are not waited for.
	Quiet bool `json:"quiet"`
}

// Stats takes a snapshot. It flushes the streams, so that the ids and digests
// are those of the state now.
func (a *Agent) Stats() Stats {
	s := Stats{Node: a.cfg.Node, Pools: []PoolStats{}, Quiet: true}
	pools, retired := a.manager.Census()
	s.Retired = retired
	for _, p := range pools {
		ps := PoolStats{Pool: poolID(a.cfg.Node, p.NamespaceID()), Namespace: p.NamespaceID().String(), Stats: p.Stats()}
		s.Quiet = s.Quiet && p.Idle()
		s.Pools = append(s.Pools, ps)
	}
	repairing := a.hub.snapshot(&s)
	s.Quiet = s.Quiet && !repairing
	a.server.snapshot(&s)
	s.Space = *a.room.stats.Load()
	return s
}

// snapshot fills in the events and streams, and reports whether a rank is
// repairing a gap.
func (h *eventHub) snapshot(s *Stats) (repairing bool) {
	ranks, pools := h.live(&s.Totals)
	s.Streams = []StreamStats{}
	for _, o := range pools {
		s.Totals.addStream(o)
		s.Streams = append(s.Streams, o.describe(nil))
	}
	for _, r := range ranks {
		rs := r.stats()
		s.Totals.Ranks.Add(rs)
		s.Totals.addStream(r.ownerStream)
		s.Totals.addReaches(r.reaches)
		d := r.describe(rs.Dropped)
		if r.rank != nil {
			d.Rank = &rs
		}
		s.Streams = append(s.Streams, d)
	}
	sum := &s.Totals.Ranks
	slices.SortFunc(s.Streams, func(a, b StreamStats) int { return cmp.Compare(a.Owner, b.Owner) })
	s.Events = EventStats{
		In: sum.Events + h.pool.Load(), Out: s.Totals.Streams.Events,
		Gaps: sum.Gaps, Repaired: sum.Repaired, Lost: sum.Lost,
		BadFrames: sum.BadFrames, BadEvents: sum.BadEvents, Restarts: sum.Restarts,
	}
	s.Outputs = h.out.stats(ranks)
	s.Outputs.CheckpointsFailed = h.files.failed.Load()
	return sum.Repairing
}

func (o *ownerStream) describe(dropped map[string]uint64) StreamStats {
	st := o.stream.Status()
	s := StreamStats{
		Owner: o.stream.Owner().String(), LastEventID: st.LastEventID, Digest: hex16(st.Digest),
		Blocks: st.Blocks, Health: st.Health, Dropped: dropped,
	}
	if s.Dropped == nil {
		s.Dropped = map[string]uint64{}
	}
	if id := o.publisherID(); id != 0 {
		s.PublisherID = hex16(id)
	}
	return s
}

func hex16(v uint64) string { return fmt.Sprintf("%016x", v) }

// snapshot fills in the sessions.
func (s *sessionServer) snapshot(out *Stats) {
	s.mu.Lock()
	out.Sessions = len(s.byID)
	waiting := 0
	for _, n := range s.waiting {
		waiting += n
	}
	s.mu.Unlock()
	c := &s.sessions
	out.Engines = SessionStats{
		Connections: s.count.accepted.Load(), Denied: s.count.denied.Load(), Malformed: s.count.malformed.Load(),
		Frames: c.frames.Load(), Refused: c.refused.Load(), Lookups: c.lookups.Load(), Claims: c.claims.Load(),
		Loads: c.loads.Load(), Stores: c.stores.Load(), Commits: c.commits.Load(),
		WorkersLost: c.workersLost.Load(), LoadsDropped: c.loadsDropped.Load(), AwaitingExit: waiting,
		Resumed: s.formers.resumed.Load(), ResumedGrants: s.formers.grants.Load(), ResumedPins: s.formers.pins.Load(),
		Prefetched: c.prefetched.Load(), LowPriority: c.lowPriority.Load(),
		Resets: c.resets.Load(), Evicted: s.evicted.told.Load(), EvictedLost: s.evicted.lost.Load(),
		ListsDropped: c.listsDropped.Load(), Panics: c.panics.Load(),
	}
	out.Connectors, out.Engines.StatsIgnored, out.Engines.StatsForgotten = s.reports.snapshot()
	out.Engines.Former, out.Engines.FormerStuck = s.formers.stats()
	out.Cache = s.cache.snapshot()
}
