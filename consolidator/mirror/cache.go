package mirror

import (
	"time"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// Config configures a Cache.
type Config struct {
	// Stream gets the changes. It must be empty, and must have no other writer.
	Stream *residency.Stream
	// Rank is the engine's rank. Batches that name another one are dropped.
	Rank kv.DPRank
	// BlockSize is the engine's KV block size in tokens.
	BlockSize int
	// MaxBlocks bounds the table of engine blocks.
	MaxBlocks int
	// Groups are the KV groups of a hybrid engine, by the numbers in its events. Without them the
	// mirror keeps the blocks of the main attention alone.
	Groups kvgroup.Groups
	// Learned makes the mirror learn the groups from the engine's events. It is called when they, or
	// the problem, may have changed: before the stream has blocks of a new group, and after Restarted.
	// groups are by the numbers in the engine's events, empty while they are unknown and for an engine
	// with one group. problem says why they cannot be known. It must be nil with Groups.
	Learned func(groups kvgroup.Groups, problem string)
	// FullReports: requests of this engine ask for full cache reports (vLLM's
	// kv_cache_report_mode=full).
	FullReports bool
	// CanList: the engine may be asked for the list of its blocks.
	CanList bool
	// Tokens gets the tokens of each block that an event stores, under the stream's lock;
	// nil: tokens are not passed on.
	Tokens tokens.Sink
	// Counters gets the counts of applied and dropped events and blocks.
	Counters *Counters
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Cache mirrors the blocks that one engine rank has cached. One goroutine owns it.
type Cache struct {
	cfg    Config
	stream *residency.Stream
	count  *Counters

	// known has the announced blocks by engine hash.
	known   dense.Table[engineBlock]
	names   names
	groups  groupFilter
	sparse  sparse
	learner learner
	hasher  kv.Hasher
	park    park
	// foundParents are blocks that have just become known and for which runs are parked.
	foundParents []foundParent

	// lowerTiers: the engine has announced blocks outside its device.
	lowerTiers bool
	// degraded: the mirror may lack blocks of the engine, or hold blocks that are gone.
	degraded bool
	// unconfirmed: the state comes from a checkpoint, and no frame or replay has shown
	// yet that the engine is the same.
	unconfirmed bool
	// unreached: no process has answered at the engine's endpoint yet.
	unreached bool

	// wantList: the engine should be asked for its list.
	wantList bool
	// onlyListed are the blocks on the engine's last list that no event has announced.
	onlyListed map[kv.EngineHash]struct{}
	// hidden holds the blocks known before a loss for which there was no list; nil: none.
	hidden *hidden
	// queuePredatesList: frames sent before the last list may still be queued. Until
	// listedUntil a stored event of device blocks may repeat blocks of that list.
	queuePredatesList bool
	listedUntil       time.Time

	version uint64
}

// engineBlock is a block that the engine announced; its key is the engine's hash. A
// known block has at least one reference.
type engineBlock struct {
	slot   uint32         // of the block in the stream's table
	nameID uint32         // number of the adapter and salt in Cache.names
	refs   residency.Refs // copies, by tier
}

// New returns an empty mirror.
func New(cfg Config) *Cache {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Cache{
		cfg: cfg, stream: cfg.Stream, count: cfg.Counters,
		names: newNames(), park: newPark(defaultParkBytes), sparse: newSparse(cfg.Groups, cfg.BlockSize),
	}
}

// Version returns a number that grows with every change that a checkpoint should save.
func (c *Cache) Version() uint64 { return c.version }

// Confirmed tells a restored mirror that the engine is the one of the checkpoint.
func (c *Cache) Confirmed() {
	if c.unconfirmed {
		c.unconfirmed = false
		c.stream.Update(c.updateHealth)
	}
}

// Unreached tells the mirror that no process has answered at the engine's endpoint yet. The
// stream is degraded until Reached or the next batch.
func (c *Cache) Unreached() {
	c.unreached = true
	c.stream.Update(c.updateHealth)
}

// Reached tells the mirror that the engine answers, even if it sends no batch.
func (c *Cache) Reached() {
	if c.unreached {
		c.unreached = false
		c.stream.Update(c.updateHealth)
	}
}

// Restarted forgets everything: a new incarnation of the engine runs, with an empty cache.
func (c *Cache) Restarted() {
	c.groups.reset()
	c.learner.reset()
	c.lowerTiers, c.degraded = false, false
	c.forget()
	c.sparse.lost = false
	if c.cfg.Learned != nil {
		c.sparse = newSparse(nil, 0)
		c.cfg.Learned(nil, "")
	}
}

// Lost forgets every block: missing events may have removed any of them.
func (c *Cache) Lost() {
	c.degraded = true
	c.forget()
}

// forget drops all blocks, names and parked events, and clears the stream.
func (c *Cache) forget() {
	c.unconfirmed, c.wantList, c.hidden = false, false, nil
	c.known.Clear()
	c.forgetSparse()
	c.names = newNames()
	c.park.reset()
	c.onlyListed = nil
	c.version++
	c.stream.Update(func(tx *residency.Tx) {
		tx.Clear()
		c.updateHealth(tx)
	})
}

// Tick updates the health after time has passed. The caller calls it at the time that Wake
// returns.
func (c *Cache) Tick() {
	if !c.park.empty() || c.sparse.waits > 0 {
		c.stream.Update(c.updateHealth)
	}
}

// Wake returns when Tick must be called next; zero: not before the next change.
func (c *Cache) Wake() time.Time {
	now := c.cfg.Now()
	var wake time.Time
	for _, at := range []time.Time{c.park.overdueAt(), c.sparse.overdueAt()} {
		if now.Before(at) && (wake.IsZero() || at.Before(wake)) {
			wake = at
		}
	}
	return wake
}

// updateHealth sets the stream's health and the gauges. It runs after each change, and when
// a parked run (a stored event whose parent is unknown) or a block of another KV group has waited
// too long.
func (c *Cache) updateHealth(tx *residency.Tx) {
	c.count.Known.Store(uint64(c.known.Len() + c.sparse.known.Len()))
	c.count.ParkedBytes.Store(uint64(c.park.bytes))
	c.count.Unlisted.Store(uint64(len(c.onlyListed)))
	overdue := false
	for _, at := range []time.Time{c.park.overdueAt(), c.sparse.overdueAt()} {
		overdue = overdue || !at.IsZero() && !c.cfg.Now().Before(at)
	}
	health := kvevent.HealthExact
	if c.degraded || c.unconfirmed || c.unreached || c.learner.partial || c.sparse.unplaced || len(c.onlyListed) > 0 || overdue {
		health = kvevent.HealthDegraded
	}
	tx.SetHealth(health)
}

// tableFull reports whether the table of known blocks has no room for another one.
func (c *Cache) tableFull() bool { return c.known.Len()+c.sparse.known.Len() >= c.cfg.MaxBlocks }

// drop counts n blocks that are not applied for reason r.
func (c *Cache) drop(r dropReason, n int) {
	c.count.dropped[r].Add(uint64(n))
	c.degraded = c.degraded || dropReasons[r].losesState
}
