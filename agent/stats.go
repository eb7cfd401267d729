package agent

import (
	"github.com/blockyard-ai/blockyard/agent/engine"
	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/agent/pools"
	"github.com/blockyard-ai/blockyard/agent/reports"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
)

// PoolStats describe one pool.
type PoolStats struct {
	Pool      uint64 `json:"pool"`
	Namespace string `json:"namespace"`
	// Model is the name of the pool's model, BlockSize the tokens of a block.
	Model     string `json:"model"`
	BlockSize uint32 `json:"block_size"`
	blockmgr.Stats
}

// Stats is a snapshot of the agent; GET /v1/stats.
type Stats struct {
	Node    string               `json:"node"`
	Cluster string               `json:"cluster"`
	Events  events.Stats         `json:"events"`
	Streams []events.StreamStats `json:"streams"`
	Pools   []PoolStats          `json:"pools"`
	// Retired are the counters of retired pools. Their sum with Pools never falls.
	Retired  blockmgr.Retired    `json:"retired"`
	Sessions int                 `json:"sessions"`
	Engines  engine.SessionStats `json:"engines"`
	// Connectors are the counters that connectors report of themselves.
	Connectors []reports.Stats   `json:"connectors"`
	Cache      engine.CacheStats `json:"cache"`
	// Filter is nil without the filter of the disk.
	Filter *policy.FrequencyStats `json:"filter,omitempty"`
	// Space is the last measurement, at most ten seconds old.
	Space   pools.SpaceStats   `json:"space"`
	Totals  events.Totals      `json:"totals"`
	Outputs events.OutputStats `json:"outputs"`
	// Quiet says that nothing is pending: no write, no read, no repair. Checks of recovered
	// blocks (Stats.Unverified) do not count.
	Quiet bool `json:"quiet"`
}

// Stats takes a snapshot. It flushes the streams, so that ids and digests are those of now. The
// agent is quiet when no pool has an operation and no rank repairs a gap.
func (a *Agent) Stats() Stats {
	s := Stats{Node: a.cfg.Node, Cluster: a.cfg.Cluster, Pools: []PoolStats{}, Quiet: true}
	open, retired := a.pools.Manager().Census()
	s.Retired = retired
	if a.filter != nil {
		f := a.filter.Stats()
		s.Filter = &f
	}
	for _, p := range open {
		ns := p.Namespace()
		ps := PoolStats{Pool: a.pools.ID(p.NamespaceID()), Namespace: p.NamespaceID().String(), Model: ns.Model, BlockSize: ns.BlockSize, Stats: p.Stats()}
		s.Quiet = s.Quiet && p.Idle()
		s.Pools = append(s.Pools, ps)
	}
	ev := a.hub.Snapshot()
	s.Events, s.Streams, s.Totals, s.Outputs = ev.Events, ev.Streams, ev.Totals, ev.Outputs
	s.Quiet = s.Quiet && !ev.Repairing
	en := a.engine.Stats()
	s.Sessions, s.Engines, s.Connectors, s.Cache = en.Sessions, en.Engines, en.Connectors, en.Cache
	s.Engines.Evicted, s.Engines.EvictedLost = ev.Evicted, ev.EvictedLost
	s.Space = a.pools.Space()
	return s
}
