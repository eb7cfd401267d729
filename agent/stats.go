package agent

import (
	"time"

	"github.com/blockyard-ai/blockyard/agent/engine"
	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/agent/pools"
	"github.com/blockyard-ai/blockyard/agent/reports"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/policy"
	"github.com/blockyard-ai/blockyard/blockmgr/tier"
	"github.com/blockyard-ai/blockyard/internal/console"
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
	// Writes is nil without a budget of writes to disk.
	Writes *policy.WriteBudgetStats `json:"writes,omitempty"`
	// Quotas are the limits and the use of models and tenants.
	Quotas []blockmgr.Quota `json:"quotas"`
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
	s.Retired, s.Quotas = retired, a.pools.Manager().Quotas()
	if a.filter != nil {
		f := a.filter.Stats()
		s.Filter = &f
	}
	if a.budget != nil {
		w := a.budget.Stats(time.Now())
		s.Writes = &w
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

// newHistory returns a history of the sums over all pools.
func (a *Agent) newHistory() *console.History {
	return console.NewHistory(func() []console.Value {
		open, retired := a.pools.Manager().Census()
		c := retired.Counters
		var host, disk tier.Stats
		var seal, write, read int
		for _, p := range open {
			s := p.Stats()
			c.Add(&s.Counters)
			host.Capacity, host.Free = host.Capacity+s.Host.Capacity, host.Free+s.Host.Free
			disk.Capacity, disk.Free = disk.Capacity+s.Disk.Capacity, disk.Free+s.Disk.Free
			seal, write, read = seal+s.SealQueue, write+s.WriteQueue, read+s.PromoteQueue
		}
		en := a.engine.Stats()
		return []console.Value{
			{Name: "host_hits", Number: float64(c.HostHits)},
			{Name: "disk_hits", Number: float64(c.DiskHits)},
			{Name: "misses", Number: float64(c.Misses)},
			{Name: "host_evictions", Number: float64(c.HostEvictions)},
			{Name: "disk_evictions", Number: float64(c.DiskEvictions)},
			{Name: "bytes_read", Number: float64(c.BytesRead)},
			{Name: "bytes_written", Number: float64(c.BytesWritten)},
			{Name: "host_capacity", Number: float64(host.Capacity)},
			{Name: "host_used", Number: float64(host.Capacity - host.Free)},
			{Name: "disk_capacity", Number: float64(disk.Capacity)},
			{Name: "disk_used", Number: float64(disk.Capacity - disk.Free)},
			{Name: "seal_queue", Number: float64(seal)},
			{Name: "write_queue", Number: float64(write)},
			{Name: "read_queue", Number: float64(read)},
			{Name: "sessions", Number: float64(en.Sessions)},
			{Name: "matched_tokens", Number: float64(en.Cache.MatchedTokens)},
		}
	})
}
