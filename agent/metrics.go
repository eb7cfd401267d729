package agent

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// collector turns a Stats snapshot into Prometheus metrics at each scrape, so
// that no other part knows about Prometheus.
type collector struct {
	stats func() Stats

	events, engines, dropped                *prometheus.Desc
	totals, allDropped                      *prometheus.Desc
	streamBlocks, streamLast, streamHealthy *prometheus.Desc
	slots, tierBytes, poolCount, poolGauge  *prometheus.Desc
	sessions, awaitingExit                  *prometheus.Desc
}

func newCollector(stats func() Stats) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("blockyard_"+name, help, labels, nil)
	}
	return &collector{
		stats:         stats,
		events:        desc("events_total", "Events by stage: in, out, gaps, repaired, lost and what was bad.", "stage"),
		engines:       desc("engine_requests_total", "Connections, frames and operations of engines.", "kind"),
		dropped:       desc("stream_dropped_blocks_total", "Blocks of engine events that were not applied.", "owner", "reason"),
		totals:        desc("event_path_total", "What ranks, streams and feeds count, ended ones included.", "part", "kind"),
		allDropped:    desc("dropped_blocks_total", "Blocks of engine events that were not applied, ended engines included.", "reason"),
		streamBlocks:  desc("stream_blocks", "(Block, tier) pairs that an owner holds.", "owner"),
		streamLast:    desc("stream_last_event_id", "Id of the last event of an owner's stream.", "owner"),
		streamHealthy: desc("stream_exact", "1 when an owner's stream is exact, 0 when it is degraded.", "owner"),
		slots:         desc("pool_slots", "Slots of a pool's tier by state.", "pool", "tier", "state"),
		tierBytes:     desc("pool_tier_bytes", "Size of the extents of a pool's tier.", "pool", "tier"),
		poolCount:     desc("pool_operations_total", "Operations of a pool.", "pool", "kind"),
		poolGauge:     desc("pool_state", "Gauges of a pool: sessions, blocks, pins and queue lengths.", "pool", "kind"),
		sessions:      desc("sessions", "Connected engine sessions."),
		awaitingExit:  desc("sessions_awaiting_exit", "Ended sessions whose processes live on; their granted slots are in quarantine."),
	}
}

// metricsHandler serves the metrics of an agent.
func metricsHandler(stats func() Stats) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(newCollector(stats))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.stats()
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, n := range s.Events.named() {
		counter(c.events, n.value, n.name)
	}
	for _, n := range s.Engines.named() {
		counter(c.engines, n.value, n.name)
	}
	for part, counters := range s.Totals.named() {
		for _, n := range counters {
			counter(c.totals, n.value, part, n.name)
		}
	}
	for reason, n := range s.Totals.Ranks.Dropped {
		counter(c.allDropped, n, reason)
	}
	gauge(c.sessions, float64(s.Sessions))
	gauge(c.awaitingExit, float64(s.Engines.AwaitingExit))
	for _, st := range s.Streams {
		gauge(c.streamBlocks, float64(st.Blocks), st.Owner)
		gauge(c.streamLast, float64(st.LastEventID), st.Owner)
		exact := 0.0
		if st.Health == kvevent.HealthExact {
			exact = 1
		}
		gauge(c.streamHealthy, exact, st.Owner)
		for reason, n := range st.Dropped {
			counter(c.dropped, n, st.Owner, reason)
		}
	}
	for i := range s.Pools {
		p := &s.Pools[i]
		pool := strconv.FormatUint(p.Pool, 10)
		for tier, ts := range map[string]*blockmgr.TierStats{"host_pinned": &p.Host, "disk": &p.Disk} {
			gauge(c.tierBytes, float64(ts.Bytes), pool, tier)
			for _, n := range slotStates(ts) {
				gauge(c.slots, float64(n.value), pool, tier, n.name)
			}
		}
		for _, n := range poolCounters(&p.Stats) {
			counter(c.poolCount, n.value, pool, n.name)
		}
		for _, n := range poolGauges(&p.Stats) {
			gauge(c.poolGauge, float64(n.value), pool, n.name)
		}
	}
}

// named is a number and the label that it goes by.
type named struct {
	name  string
	value uint64
}

func (e *EventStats) named() []named {
	return []named{
		{"in", e.In}, {"out", e.Out}, {"gaps", e.Gaps}, {"repaired", e.Repaired}, {"lost", e.Lost},
		{"bad_frames", e.BadFrames}, {"bad_events", e.BadEvents}, {"engine_restarts", e.Restarts},
	}
}

func (e *SessionStats) named() []named {
	return []named{
		{"connections", e.Connections}, {"denied", e.Denied}, {"malformed", e.Malformed}, {"frames", e.Frames},
		{"refused", e.Refused}, {"lookups", e.Lookups}, {"claims", e.Claims}, {"loads", e.Loads},
		{"stores", e.Stores}, {"commits", e.Commits}, {"workers_lost", e.WorkersLost},
		{"loads_dropped", e.LoadsDropped},
	}
}

func slotStates(t *blockmgr.TierStats) []named {
	return []named{
		{"free", uint64(t.Free)}, {"granted", uint64(t.Granted)}, {"staging", uint64(t.Staging)},
		{"receiving", uint64(t.Receiving)}, {"quarantined", uint64(t.Quarantined)},
		{"active", uint64(t.Active)}, {"inactive", uint64(t.Inactive)},
	}
}

func poolCounters(s *blockmgr.Stats) []named {
	return []named{
		{"host_hits", s.HostHits}, {"disk_hits", s.DiskHits}, {"misses", s.Misses},
		{"granted", s.Granted}, {"present", s.Present}, {"refused", s.Refused}, {"committed", s.Committed}, {"aborted", s.Aborted},
		{"pins_refused", s.PinsRefused}, {"host_evictions", s.HostEvictions}, {"disk_evictions", s.DiskEvictions},
		{"promotions", s.Promotions}, {"promotions_shared", s.PromotionsShared},
		{"write_behind", s.WriteBehind}, {"write_behind_dropped", s.WriteBehindDropped}, {"write_behind_refused", s.WriteBehindRefused},
		{"bytes_read", s.BytesRead}, {"bytes_written", s.BytesWritten},
		{"corrupt_reads", s.CorruptReads}, {"read_errors", s.ReadErrors}, {"write_errors", s.WriteErrors},
		{"table_errors", s.TableErrors}, {"memory_errors", s.MemoryErrors}, {"grow_errors", s.GrowErrors}, {"grow_refused", s.GrowRefused}, {"extents_yielded", s.ExtentsYielded},
		{"recovered", s.Recovered},
	}
}

func poolGauges(s *blockmgr.Stats) []named {
	return []named{
		{"sessions", uint64(s.Sessions)}, {"blocks", uint64(s.Blocks)}, {"pins", uint64(s.Pins)},
		{"seal_queue", uint64(s.SealQueue)}, {"write_queue", uint64(s.WriteQueue)}, {"promote_queue", uint64(s.PromoteQueue)},
	}
}
