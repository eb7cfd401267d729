package reports

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/agent/refusal"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

const (
	// reportInterval is the time between two STATS of a connection that count. reportBurst of
	// them may come at once after a pause, such as the last two before BYE.
	reportInterval = time.Second
	reportBurst    = 2
	// maxConnectors bounds the worker ranks and roles with a sum: twice as many as can be
	// connected. A rank whose sum made room, and that reports again, begins with the counters
	// of its connection.
	maxConnectors = 256
)

// Stats are the counters that the connectors of one worker rank and role have sent in STATS
// since the agent's start, over all connections.
type Stats struct {
	// Worker is the worker id in decimal, Rank the data-parallel rank, Role scheduler or
	// worker.
	Worker string `json:"worker"`
	Rank   uint32 `json:"rank"`
	Role   string `json:"role"`
	// Connector is the name and version in the HELLO of the last connection to report, if any.
	Connector string `json:"connector,omitempty"`
	// Connected is the number of open connections that have reported.
	Connected int `json:"connected"`
	proto.Stats
}

// key identifies a sum.
type key struct {
	worker kv.Worker
	role   proto.Role
}

// sum is the total of the reports of one key's connections.
type sum struct {
	stats     proto.Stats
	connector string
	connected int
	last      time.Time // of the last report
}

// Table has the sums of all connectors. Any goroutine may call its methods; mu is a leaf.
type Table struct {
	mu    sync.Mutex
	byKey map[key]*sum
	// ignored counts STATS that came too soon, forgotten sums that made room.
	ignored, forgotten uint64
}

// New returns a table without sums.
func New() *Table {
	return &Table{byKey: make(map[key]*sum)}
}

// Reporter adds the STATS of one connection to a sum. The goroutine that reads the connection
// uses it.
type Reporter struct {
	reports   *Table
	key       key
	connector string      // from HELLO
	into      *sum        // nil before the first report
	last      proto.Stats // the last report that was added to into
	seen      proto.Stats // the last report, also if ignored
	allowed   int         // reports that still count in this interval
	since     time.Time   // begin of the interval
}

// Reporter returns the reporter of a connection whose client said HELLO. Close must be called.
func (c *Table) Reporter(w kv.Worker, h *proto.Hello) *Reporter {
	return &Reporter{reports: c, key: key{w, proto.Role(h.Role)}, connector: h.Connector, allowed: reportBurst}
}

// Take adds the growth since the connection's last report to the sum of the worker rank and
// role. It refuses the whole report if a counter has fallen. A report too soon after others is
// ignored and counted; the growth comes with the next one.
func (r *Reporter) Take(m *proto.Stats, now time.Time) error {
	fields, seen := Fields(m), Fields(&r.seen)
	for i, f := range fields {
		if *f.Value < *seen[i].Value {
			return refusal.New(proto.CodeRange, "STATS %s: %d, want at least the %d of the report before", f.Name, *f.Value, *seen[i].Value)
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
	if into := c.enterLocked(r.key); into != r.into { // the first report, or the sum has made room
		r.into, r.last = into, proto.Stats{}
		into.connected++
		into.connector = r.connector
	}
	r.into.last = now
	last := Fields(&r.last)
	for i, sum := range Fields(&r.into.stats) {
		*sum.Value += min(*fields[i].Value-*last[i].Value, math.MaxUint64-*sum.Value)
	}
	r.last = *m
	return nil
}

// allow lets one report count for each interval that has passed, at most reportBurst at once.
// The rest of an interval counts toward the next call.
func (r *Reporter) allow(now time.Time) {
	n := now.Sub(r.since) / reportInterval
	r.since = r.since.Add(n * reportInterval)
	if n += time.Duration(r.allowed); n > reportBurst {
		n, r.since = reportBurst, now
	}
	r.allowed = int(n)
}

// Close says that the connection has ended.
func (r *Reporter) Close() {
	r.reports.mu.Lock()
	defer r.reports.mu.Unlock()
	if r.into != nil {
		r.into.connected--
	}
}

// enterLocked returns the sum of k and makes one if there is none. In a full table the sum
// with the oldest report makes room, those without a connection first.
func (c *Table) enterLocked(k key) *sum {
	if s := c.byKey[k]; s != nil {
		return s
	}
	if len(c.byKey) >= maxConnectors {
		var oldest key
		var found *sum
		for k, s := range c.byKey {
			if found == nil || cmp.Or(cmp.Compare(min(s.connected, 1), min(found.connected, 1)), s.last.Compare(found.last)) < 0 {
				oldest, found = k, s
			}
		}
		delete(c.byKey, oldest)
		c.forgotten++
	}
	s := &sum{}
	c.byKey[k] = s
	return s
}

// Copies returns the sums of the copies of a rank's workers between host memory and device:
// bytes, microseconds, and the number of connected workers. They are zero before a report.
func (c *Table) Copies(w kv.Worker) Copies {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.byKey[key{w, proto.RoleWorker}]
	if s == nil {
		return Copies{}
	}
	return Copies{Bytes: s.stats.CopiedBytes, Micros: s.stats.CopyMicros, Workers: s.connected}
}

// Snapshot returns the sums in the order of their workers, and how many reports and sums were
// left out.
func (c *Table) Snapshot() (list []Stats, ignored, forgotten uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := make([]key, 0, len(c.byKey))
	for k := range c.byKey {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(a.worker.Compare(b.worker), cmp.Compare(a.role, b.role))
	})
	list = make([]Stats, len(keys))
	for i, k := range keys {
		e := c.byKey[k]
		list[i] = Stats{
			Worker: strconv.FormatUint(uint64(k.worker.ID), 10), Rank: uint32(k.worker.Rank), Role: string(k.role),
			Connector: e.connector, Connected: e.connected, Stats: e.stats,
		}
	}
	return list, c.ignored, c.forgotten
}

// Field is a counter of STATS and its name.
type Field struct {
	Name  string
	Value *uint64
}

// Fields returns the counters of s, in a fixed order.
func Fields(s *proto.Stats) []Field {
	return []Field{
		{"lookups", &s.Lookups}, {"hit_blocks", &s.HitBlocks}, {"loads", &s.Loads}, {"loaded_blocks", &s.LoadedBlocks},
		{"failed_loads", &s.FailedLoads}, {"stores", &s.Stores}, {"stored_blocks", &s.StoredBlocks}, {"dropped_stores", &s.DroppedStores},
		{"copied_bytes", &s.CopiedBytes}, {"copy_us", &s.CopyMicros}, {"errors", &s.Errors},
		{"hand_overs", &s.HandOvers}, {"hand_over_blocks", &s.HandOverBlocks}, {"hand_over_missing", &s.HandOverMissing},
	}
}

// Copies sums the copies of a rank's workers. Micros is the sum of their times, Workers
// the number of connected ones.
type Copies struct {
	Bytes, Micros uint64
	Workers       int
}
