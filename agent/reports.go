package agent

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

const (
	// reportInterval is how often a connection's STATS count; reportBurst of them may
	// come at once after a pause, such as the last two before BYE.
	reportInterval = time.Second
	reportBurst    = 2
	// maxConnectors bounds the worker ranks and roles whose sums are kept. It is twice
	// what can be connected at a time where blocks are kept. The sum of one that has
	// made room and reports again begins with what its connection has counted.
	maxConnectors = 256
)

// ConnectorStats are what the connectors of one worker rank said with STATS, since
// the agent's start and over all connections of the role, ended ones included.
type ConnectorStats struct {
	// Worker is the worker id in decimal, Rank the data-parallel rank, Role scheduler
	// or worker.
	Worker string `json:"worker"`
	Rank   uint32 `json:"rank"`
	Role   string `json:"role"`
	// Connector is the name and version that the last connection to report gave in
	// HELLO; empty when it gave none.
	Connector string `json:"connector,omitempty"`
	// Connected is the number of connections that have reported and still stand.
	Connected int `json:"connected"`
	proto.Stats
}

// connectorKey tells the sums of connectors apart.
type connectorKey struct {
	worker kv.Worker
	role   proto.Role
}

// connectorSum is what the connections of one key have reported together.
type connectorSum struct {
	sum       proto.Stats
	connector string
	connected int
	last      time.Time // of the last report
}

// connectorReports keeps the sums of all connectors.
type connectorReports struct {
	mu    sync.Mutex
	byKey map[connectorKey]*connectorSum
	// ignored are STATS that came too soon, forgotten the sums that made room.
	ignored, forgotten uint64
}

func newConnectorReports() *connectorReports {
	return &connectorReports{byKey: make(map[connectorKey]*connectorSum)}
}

// reporter takes the STATS of one connection. The goroutine that reads the
// connection uses it.
type reporter struct {
	reports   *connectorReports
	key       connectorKey
	connector string        // of HELLO
	into      *connectorSum // nil before the first report
	last      proto.Stats   // the last report of which something is in into
	seen      proto.Stats   // the last report, ignored ones included
	allowed   int           // reports that count before the next interval ends
	since     time.Time     // when that one began
}

func (c *connectorReports) reporter(w kv.Worker, h *proto.Hello) *reporter {
	return &reporter{reports: c, key: connectorKey{w, proto.Role(h.Role)}, connector: h.Connector, allowed: reportBurst}
}

// take adds what has been counted since the last report. A counter that went back
// refuses the whole.
func (r *reporter) take(m *proto.Stats, now time.Time) error {
	fields, seen := statFields(m), statFields(&r.seen)
	for i, f := range fields {
		if *f.value < *seen[i].value {
			return refusal.New(proto.CodeRange, "STATS %s: %d, want at least the %d of the report before", f.name, *f.value, *seen[i].value)
		}
	}
	r.seen = *m
	r.allow(now)
	c := r.reports
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.allowed == 0 {
		c.ignored++
		return nil
	}
	r.allowed--
	if into := c.enterLocked(r.key); into != r.into { // the first one, or its sum has made room
		r.into, r.last = into, proto.Stats{}
		into.connected++
		into.connector = r.connector
	}
	r.into.last = now
	last := statFields(&r.last)
	for i, sum := range statFields(&r.into.sum) {
		*sum.value = add(*sum.value, *fields[i].value-*last[i].value)
	}
	r.last = *m
	return nil
}

// allow lets as many reports count as intervals have passed.
func (r *reporter) allow(now time.Time) {
	n := now.Sub(r.since) / reportInterval
	r.since = r.since.Add(n * reportInterval)
	if n += time.Duration(r.allowed); n > reportBurst {
		n, r.since = reportBurst, now
	}
	r.allowed = int(n)
}

// close says that the connection has ended.
func (r *reporter) close() {
	r.reports.mu.Lock()
	defer r.reports.mu.Unlock()
	if r.into != nil {
		r.into.connected--
	}
}

// enterLocked is the sum of key, made when there is none. The one that was last
// reported to longest ago makes room, of those without a connection first.
func (c *connectorReports) enterLocked(key connectorKey) *connectorSum {
	if s := c.byKey[key]; s != nil {
		return s
	}
	if len(c.byKey) >= maxConnectors {
		var oldest connectorKey
		var found *connectorSum
		for k, s := range c.byKey {
			if found == nil || cmp.Or(cmp.Compare(min(s.connected, 1), min(found.connected, 1)), s.last.Compare(found.last)) < 0 {
				oldest, found = k, s
			}
		}
		delete(c.byKey, oldest)
		c.forgotten++
	}
	s := &connectorSum{}
	c.byKey[key] = s
	return s
}

// copies is what the workers of a rank have copied.
func (c *connectorReports) copies(w kv.Worker) copySum {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.byKey[connectorKey{w, proto.RoleWorker}]
	if s == nil {
		return copySum{}
	}
	return copySum{Bytes: s.sum.CopiedBytes, Micros: s.sum.CopyMicros, Workers: s.connected}
}

// snapshot lists the sums in the order of their workers, and counts what was left
// out.
func (c *connectorReports) snapshot() (list []ConnectorStats, ignored, forgotten uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := make([]connectorKey, 0, len(c.byKey))
	for k := range c.byKey {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b connectorKey) int {
		return cmp.Or(a.worker.Compare(b.worker), cmp.Compare(a.role, b.role))
	})
	list = make([]ConnectorStats, len(keys))
	for i, k := range keys {
		e := c.byKey[k]
		list[i] = ConnectorStats{
			Worker: strconv.FormatUint(uint64(k.worker.ID), 10), Rank: uint32(k.worker.Rank), Role: string(k.role),
			Connector: e.connector, Connected: e.connected, Stats: e.sum,
		}
	}
	return list, c.ignored, c.forgotten
}

// statField is a counter of STATS and its name.
type statField struct {
	name  string
	value *uint64
}

func statFields(s *proto.Stats) []statField {
	return []statField{
		{"lookups", &s.Lookups}, {"hit_blocks", &s.HitBlocks}, {"loads", &s.Loads}, {"loaded_blocks", &s.LoadedBlocks},
		{"failed_loads", &s.FailedLoads}, {"stores", &s.Stores}, {"stored_blocks", &s.StoredBlocks}, {"dropped_stores", &s.DroppedStores},
		{"copied_bytes", &s.CopiedBytes}, {"copy_us", &s.CopyMicros}, {"errors", &s.Errors},
	}
}
