package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/agent/events"
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
	fields, seen := StatFields(m), StatFields(&r.seen)
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
	if into := c.enterLocked(r.key); into != r.into { // the first one, or its sum has made room
		r.into, r.last = into, proto.Stats{}
		into.connected++
		into.connector = r.connector
	}
	r.into.last = now
	last := StatFields(&r.last)
	for i, sum := range StatFields(&r.into.sum) {
		*sum.Value += min(*fields[i].Value-*last[i].Value, math.MaxUint64-*sum.Value)
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
func (c *connectorReports) copies(w kv.Worker) events.CopySum {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.byKey[connectorKey{w, proto.RoleWorker}]
	if s == nil {
		return events.CopySum{}
	}
	return events.CopySum{Bytes: s.sum.CopiedBytes, Micros: s.sum.CopyMicros, Workers: s.connected}
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

// StatField is a counter of STATS and its name.
type StatField struct {
	Name  string
	Value *uint64
}

// StatFields are the counters of s, in a fixed order.
func StatFields(s *proto.Stats) []StatField {
	return []StatField{
		{"lookups", &s.Lookups}, {"hit_blocks", &s.HitBlocks}, {"loads", &s.Loads}, {"loaded_blocks", &s.LoadedBlocks},
		{"failed_loads", &s.FailedLoads}, {"stores", &s.Stores}, {"stored_blocks", &s.StoredBlocks}, {"dropped_stores", &s.DroppedStores},
		{"copied_bytes", &s.CopiedBytes}, {"copy_us", &s.CopyMicros}, {"errors", &s.Errors},
	}
}

// gaugeBox keeps the latest gauges of a session.
type gaugeBox struct {
	latest atomic.Pointer[events.EngineGauges]
}

// take keeps what STATS says, if it says anything.
func (b *gaugeBox) take(m *proto.Stats) {
	if m.DeviceBlocksTotal == 0 {
		return
	}
	g := events.EngineGauges{
		DeviceBlocks: m.DeviceBlocksTotal, DeviceUsed: m.DeviceBlocksUsed,
		Running: m.RunningRequests, Waiting: m.WaitingRequests,
	}
	if old := b.latest.Load(); old == nil || *old != g {
		b.latest.Store(&g)
	}
}

// gauges are what the scheduler's last STATS said; false before the first one, and
// for an engine that does not say. An engine whose gauges do not change may not
// repeat them. Any goroutine may ask.
func (s *session) gauges() (events.EngineGauges, bool) {
	g := s.stand.latest.Load()
	if g == nil {
		return events.EngineGauges{}, false
	}
	return *g, true
}

// takeStats counts what a scheduler reports and keeps how it stands, that of reports
// that come too soon to count too.
func (s *session) takeStats(m *proto.Stats) error {
	if err := s.reports.take(m, time.Now()); err != nil {
		return err
	}
	s.stand.take(m)
	return nil
}

// listTimeout is how long an engine may take to list its cached hashes, the time to
// send them included.
const listTimeout = 5 * time.Second

var (
	errCannotList  = errors.New("the engine's connector does not list its cached hashes")
	errUnavailable = errors.New("the engine says that its cached hashes are not available")
)

// cachedLists asks a scheduler for what its device's prefix cache holds, one list at
// a time, and puts the answers together. The zero value asks nobody.
type cachedLists struct {
	ask     func(list uint64) error // nil: the connector did not say that it can
	opened  chan struct{}           // closed when WELCOME has left, before which nothing may
	turn    chan struct{}           // room for one: the list that is being made
	dropped func()                  // counts a frame of a list that nobody waits for any more

	mu     sync.Mutex
	last   uint64 // the list that was asked for last
	flight *listFlight
}

// listFlight is a list on its way.
type listFlight struct {
	list   uint64
	hashes []kv.EngineHash
	err    error
	done   chan struct{} // closed when hashes and err stay as they are
}

func newCachedLists(ask func(list uint64) error, dropped func()) *cachedLists {
	return &cachedLists{ask: ask, opened: make(chan struct{}), turn: make(chan struct{}, 1), dropped: dropped}
}

// askList sends LIST_CACHED on a scheduler's connection; nil when its HELLO did not
// say that it answers.
func askList(c *proto.Conn, h *proto.Hello) func(list uint64) error {
	if !h.ListsCached {
		return nil
	}
	return func(list uint64) error { return c.Send(proto.TypeListCached, 0, &proto.ListCached{List: list}, nil) }
}

// cachedHashes are the hashes in the engine's prefix cache, as its events have them.
// Every hash that was there from this call until the return is among them; one that
// came or went meanwhile may be, and one may come twice. Calls wait for each other,
// so that each has a list of its own time. The error says why there is no list: the
// connector cannot tell, does not answer within listTimeout, or lists more than
// proto.MaxListed; the session or ctx has ended.
func (s *session) cachedHashes(ctx context.Context) ([]kv.EngineHash, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(errEnded) })()
	return s.lists.get(ctx)
}

func (l *cachedLists) get(ctx context.Context) ([]kv.EngineHash, error) {
	if l.ask == nil {
		return nil, errCannotList
	}
	select {
	case <-l.opened:
	case <-ctx.Done():
		return nil, fmt.Errorf("cached hashes, before WELCOME: %w", context.Cause(ctx))
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("cached hashes, behind another list: %w", context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, listTimeout, fmt.Errorf("not listed within %s", listTimeout))
	defer cancel()
	f := l.begin()
	defer l.end(f, nil)
	if err := l.ask(f.list); err != nil {
		return nil, fmt.Errorf("cached hashes: %w", err)
	}
	select {
	case <-f.done:
		return f.hashes, f.err
	case <-ctx.Done():
		return nil, fmt.Errorf("cached hashes: %w", context.Cause(ctx))
	}
}

// open lets lists be asked for.
func (l *cachedLists) open() { close(l.opened) }

func (l *cachedLists) begin() *listFlight {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	l.flight = &listFlight{list: l.last, done: make(chan struct{})}
	return l.flight
}

// end ends a list, if that has not happened yet.
func (l *cachedLists) end(f *listFlight, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(f, err)
}

func (l *cachedLists) endLocked(f *listFlight, err error) {
	if l.flight != f {
		return
	}
	l.flight = nil
	if f.err = err; err != nil {
		f.hashes = nil
	}
	close(f.done)
}

// take takes a part of a list. Parts of one that is not waited for any more are
// dropped; one that was never asked for is refused.
func (l *cachedLists) take(m *proto.Cached) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.flight
	switch {
	case m.List > l.last:
		return refusal.New(proto.CodeState, "CACHED list: %d was not asked for, the last one is %d", m.List, l.last)
	case f == nil || f.list != m.List:
		l.dropped()
		return nil
	case m.Unavailable:
		l.endLocked(f, errUnavailable)
		return nil
	}
	var err error
	if f.hashes, err = proto.ParseEngineHashes(f.hashes, m.Hashes); err != nil {
		return err
	}
	if n := len(f.hashes); n > proto.MaxListed {
		l.endLocked(f, fmt.Errorf("cached hashes: the engine lists more than %d", proto.MaxListed))
	} else if m.Final {
		l.endLocked(f, nil)
	}
	return nil
}
