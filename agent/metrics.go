package agent

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/agent/reports"
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/metric/prom"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// collector makes Prometheus metrics of a Stats snapshot at each scrape. KVBM's names are those of
// kvbmCollector.
type collector struct {
	stats func() Stats

	events, engines, dropped                *prometheus.Desc
	totals, state, allDropped               *prometheus.Desc
	outputBlocks, httpClients, httpTotal    *prometheus.Desc
	streamBlocks, streamLast, streamHealthy *prometheus.Desc
	slots, tierBytes, poolCount, poolGauge  *prometheus.Desc
	sessions, awaitingExit, previous        *prometheus.Desc
	cacheTotal, hitRate, space, heapLimit   *prometheus.Desc
	filterTotal, filterState                *prometheus.Desc
	budgetTotal, budgetState                *prometheus.Desc
	poolInfo, nodeInfo                      *prometheus.Desc
	diskBytes, diskRead                     *prometheus.Desc
	quota, wear, deviceWritten              *prometheus.Desc
	copySeconds, pathSeconds                *prometheus.Desc
	// connector are the counters of STATS, in the order of reports.Fields.
	connector []*prometheus.Desc
}

// newCollector returns a collector of the agent's metrics that calls stats once for each scrape.
func newCollector(stats func() Stats) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("blockyard_"+name, help, labels, nil)
	}
	var connector []*prometheus.Desc
	for _, f := range reports.Fields(new(proto.Stats)) {
		help := "Sum of " + f.Name + " that connectors of a worker rank report."
		if f.Name == "copy_us" {
			help = prom.Deprecated("blockyard_connector_copy_seconds_total")
		}
		connector = append(connector, desc("connector_"+f.Name+"_total", help, "worker", "rank", "role"))
	}
	return &collector{
		stats:         stats,
		connector:     connector,
		events:        desc("events_total", "Events by stage: in, out, gaps, repaired, lost, bad.", "stage"),
		engines:       desc("engine_requests_total", "Connections, frames and operations of engines.", "kind"),
		dropped:       desc("stream_dropped_blocks_total", "Blocks of engine events that were not applied.", "owner", "reason"),
		totals:        desc("event_path_total", "Counters of ranks, streams, feeds and merged outputs, ended ones included.", "part", "kind"),
		state:         desc("event_path_state", "Gauges of ranks, feeds and merged outputs: queues, known blocks, subscribers.", "part", "kind"),
		allDropped:    desc("dropped_blocks_total", "Blocks of engine events that were not applied, ended engines included.", "reason"),
		outputBlocks:  desc("output_blocks", "(Block, tier) pairs that an output publishes of a rank and its pool together.", "owner", "output"),
		httpClients:   desc("http_event_clients", "Connected clients of the events over HTTP."),
		httpTotal:     desc("http_events_total", "Counters of the events over HTTP: frames, bytes, drops, queries.", "kind"),
		streamBlocks:  desc("stream_blocks", "(Block, tier) pairs that an owner holds.", "owner"),
		streamLast:    desc("stream_last_event_id", "Id of the last event of an owner's stream.", "owner"),
		streamHealthy: desc("stream_exact", "1 when an owner's stream is exact, 0 when it is degraded.", "owner"),
		slots:         desc("pool_slots", "Slots of a pool's tier by state.", "pool", "tier", "state"),
		tierBytes:     desc("pool_tier_bytes", "Size of the extents of a pool's tier.", "pool", "tier"),
		poolCount:     desc("pool_operations_total", "Operations of a pool, and of all retired pools (pool=\"retired\").", "pool", "kind"),
		poolInfo:      desc("pool_info", "Model and namespace of a pool, for joins by the label pool. The value is 1.", "pool", "node", "model", "namespace", "block_size"),
		nodeInfo:      desc("node_info", "Name of the node and of its cluster. The value is 1.", "node", "cluster"),
		diskBytes:     desc("pool_disk_bytes_total", "Bytes of blocks that a pool read from disk and wrote to disk.", "pool", "direction"),
		diskRead:      desc("pool_disk_read_seconds_total", "Time in which at least one block of a pool was being read from disk.", "pool"),
		copySeconds:   desc("connector_copy_seconds_total", "Time that the workers of a rank have copied, summed over the workers.", "worker", "rank", "role"),
		pathSeconds:   desc("path_seconds", "Time of a lookup with its reads (lookup), of a block's read from disk, write to disk, and first checksum (seal), over all pools.", "path"),
		poolGauge:     desc("pool_state", "Gauges of a pool: sessions, blocks, pins and queue lengths.", "pool", "kind"),
		sessions:      desc("sessions", "Connected engine sessions."),
		awaitingExit:  desc("sessions_awaiting_exit", "Ended sessions with granted slots in quarantine until their processes exit."),
		previous:      desc("former_sessions", "Sessions of an earlier agent that have neither resumed nor ended. Stuck: a process cannot be watched.", "kind"),
		cacheTotal:    desc("cache_total", "Tokens that lookups found, and blocks that went to a device by tier.", "kind"),
		hitRate:       desc("cache_hit_rate", "Share of the requested blocks that a tier had, over the last requests.", "tier"),
		filterTotal:   desc("disk_filter_total", "Decisions of the filter of the disk, and blocks whose count it forgot early.", "kind"),
		filterState:   desc("disk_filter_state", "Gauges of the filter of the disk: blocks with a count.", "kind"),
		budgetTotal:   desc("disk_write_budget_total", "Blocks that were not written to disk because of --disk-write-budget: others were in more demand (refused), or no bytes were left (exhausted).", "kind"),
		budgetState:   desc("disk_write_budget_bytes", "Bytes written to disk in the last 24 hours, the budget, and what is left of it now.", "kind"),
		wear:          desc("disk_wear_ratio", "Share of the endurance of a device of the disk tier that is used, as the device says (SMART). Absent where it cannot be read.", "device"),
		deviceWritten: desc("disk_device_written_bytes_total", "Bytes written to a device of the disk tier in its life, by anybody, as the device says (SMART).", "device"),
		quota:         desc("quota_bytes", "Bytes of a tier that a model's extents or a tenant's blocks take (used), and may take (limit, 0 for no limit). tenant_model is the part of a tenant's blocks that are of a model.", "of", "name", "model", "tier", "kind"),
		space:         desc("space_bytes", "Sizes of the file systems of the tiers.", "tier", "kind"),
		heapLimit:     desc("heap_limit_bytes", "Limit of the Go heap, 0 for no limit."),
	}
}

// retiredPools is the pool's label for the sum of all retired pools.
const retiredPools = "retired"

// metricsHandler serves the metrics of an agent and of its process. version is the program's.
func metricsHandler(stats func() Stats, version string) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(newCollector(stats))
	prom.Process(r, version)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s, m := c.stats(), metrics(ch)
	c.collectEvents(m, &s)
	c.collectEngines(m, &s)
	m.gauge(c.nodeInfo, 1, s.Node, s.Cluster)
	for i := range s.Streams {
		c.collectStream(m, &s.Streams[i])
	}
	for i := range s.Pools {
		c.collectPool(m, s.Node, &s.Pools[i])
	}
	prom.Kinds(ch, c.poolCount, nil, &s.Retired.Counters, retiredPools)
	c.collectDisk(m, &s.Retired.DiskCounters, retiredPools)
	c.collectDurations(m, s.Retired.Counters, s.Pools)
	for i := range s.Connectors {
		c.collectConnector(m, &s.Connectors[i])
	}
}

// metrics receives the values of one scrape.
type metrics chan<- prometheus.Metric

func (m metrics) counter(d *prometheus.Desc, v uint64, labels ...string) {
	m <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

// seconds sends a counter of microseconds in seconds.
func (m metrics) seconds(d *prometheus.Desc, micros uint64, labels ...string) {
	m <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(micros)/1e6, labels...)
}

func (m metrics) gauge(d *prometheus.Desc, v float64, labels ...string) {
	m <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// collectEvents sends the counters of the path of events.
func (c *collector) collectEvents(m metrics, s *Stats) {
	prom.Kinds(m, c.events, nil, &s.Events)
	for reason, n := range s.Totals.Ranks.Dropped {
		m.counter(c.allDropped, n, reason)
	}
	c.collectPath(m, s)
}

// collectEngines sends the values of sessions, of the cache as engines see it, and of the node.
func (c *collector) collectEngines(m metrics, s *Stats) {
	prom.Kinds(m, c.engines, nil, &s.Engines)
	m.gauge(c.sessions, float64(s.Sessions))
	m.gauge(c.awaitingExit, float64(s.Engines.AwaitingExit))
	m.gauge(c.previous, float64(s.Engines.Previous-s.Engines.PreviousStuck), "watched")
	m.gauge(c.previous, float64(s.Engines.PreviousStuck), "stuck")
	prom.Kinds(m, c.cacheTotal, nil, &s.Cache)
	if s.Filter != nil {
		prom.Kinds(m, c.filterTotal, c.filterState, s.Filter)
	}
	if s.Writes != nil {
		prom.Kinds(m, c.budgetTotal, c.budgetState, s.Writes)
	}
	m.gauge(c.hitRate, s.Cache.HostHitRate, "host_pinned")
	m.gauge(c.hitRate, s.Cache.DiskHitRate, "disk")
	for _, d := range s.Space.Devices {
		if d.Problem == "" {
			m.gauge(c.wear, d.Used, d.Name)
			m.counter(c.deviceWritten, d.Written, d.Name)
		}
	}
	for i := range s.Quotas {
		q := &s.Quotas[i]
		for tier, b := range map[string]blockmgr.QuotaBytes{"host_pinned": q.Host, "disk": q.Disk} {
			m.gauge(c.quota, float64(b.Used), q.Of, q.Name, q.Model, tier, "used")
			m.gauge(c.quota, float64(b.Limit), q.Of, q.Name, q.Model, tier, "limit")
		}
	}
	m.gauge(c.space, float64(s.Space.HostFree), "host_pinned", "free")
	m.gauge(c.space, float64(s.Space.HostTotal), "host_pinned", "total")
	m.gauge(c.space, float64(s.Space.DiskFree), "disk", "free")
	m.gauge(c.space, float64(s.Space.DiskTotal), "disk", "total")
	m.gauge(c.heapLimit, float64(s.Space.HeapLimit))
}

// collectStream sends the state of one owner's stream.
func (c *collector) collectStream(m metrics, st *events.StreamStats) {
	m.gauge(c.streamBlocks, float64(st.Blocks), st.Owner)
	m.gauge(c.streamLast, float64(st.LastEventID), st.Owner)
	exact := 0.0
	if st.Health == kvevent.HealthExact {
		exact = 1
	}
	m.gauge(c.streamHealthy, exact, st.Owner)
	for reason, n := range st.Dropped {
		m.counter(c.dropped, n, st.Owner, reason)
	}
}

func (c *collector) collectConnector(m metrics, s *reports.Stats) {
	for i, f := range reports.Fields(&s.Stats) {
		m.counter(c.connector[i], *f.Value, s.Worker, strconv.FormatUint(uint64(s.Rank), 10), s.Role)
	}
	m.seconds(c.copySeconds, s.CopyMicros, s.Worker, strconv.FormatUint(uint64(s.Rank), 10), s.Role)
}

// collectPool sends the values of one open pool and its tiers.
func (c *collector) collectPool(m metrics, node string, p *PoolStats) {
	pool := strconv.FormatUint(p.Pool, 10)
	m.gauge(c.poolInfo, 1, pool, node, p.Model, p.Namespace, strconv.FormatUint(uint64(p.BlockSize), 10))
	c.collectDisk(m, &p.DiskCounters, pool)
	for tier, ts := range map[string]*blockmgr.TierStats{"host_pinned": &p.Host, "disk": &p.Disk} {
		m.gauge(c.tierBytes, float64(ts.Bytes), pool, tier)
		prom.Kinds(m, nil, c.slots, ts, pool, tier)
	}
	prom.Kinds(m, c.poolCount, c.poolGauge, &p.Stats, pool)
}

// collectDisk sends the bytes and the time of a pool's disk in base units.
func (c *collector) collectDisk(m metrics, d *blockmgr.DiskCounters, pool string) {
	m.counter(c.diskBytes, d.BytesRead, pool, "read")
	m.counter(c.diskBytes, d.BytesWritten, pool, "write")
	m.seconds(c.diskRead, d.ReadMicros, pool)
}

// collectDurations sends how long operations of all pools took. sum has those of retired pools.
func (c *collector) collectDurations(m metrics, sum blockmgr.Counters, open []PoolStats) {
	for i := range open {
		sum.Add(&open[i].Counters)
	}
	prom.Histograms(m, c.pathSeconds, &sum)
}

// collectPath sends the counters of ranks, streams, feeds and outputs.
func (c *collector) collectPath(m metrics, s *Stats) {
	t, o := &s.Totals, &s.Outputs
	sendPart(c, m, "rank", &t.Ranks)
	sendPart(c, m, "stream", &t.Streams)
	sendPart(c, m, "feed", &t.Feeds)
	sendPart(c, m, "zmq", &t.ZMQ)
	sendPart(c, m, "dynamo", &t.Dynamo)
	sendPart(c, m, "outputs", o)
	sendPart(c, m, "read_ahead", &o.ReadAhead)
	if o.NATS != nil {
		sendPart(c, m, "nats", o.NATS)
	}
	if o.Dynamo != nil {
		sendPart(c, m, "dynamo_plane", o.Dynamo)
	}
	if o.Tokens != nil {
		sendPart(c, m, "tokens", o.Tokens)
	}
	for i := range o.Ranks {
		r := &o.Ranks[i]
		if r.ZMQ != nil {
			m.gauge(c.outputBlocks, float64(r.Blocks), r.Owner, "zmq")
		}
		if r.Dynamo != nil {
			m.gauge(c.outputBlocks, float64(r.Blocks), r.Owner, "dynamo")
		}
	}
	m.gauge(c.httpClients, float64(o.HTTP.Clients))
	prom.Kinds(m, c.httpTotal, nil, &o.HTTP)
}

// sendPart sends the numbers of one part of the path of events.
func sendPart[T any](c *collector, m metrics, part string, s *T) {
	prom.Kinds(m, c.totals, c.state, s, part)
}
