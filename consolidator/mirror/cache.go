package mirror

import (
	"time"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Config says what a Cache mirrors.
type Config struct {
	// Stream gets the changes. It must be empty, and must have no other writer.
	Stream *residency.Stream
	// Rank is the engine's rank. Batches that name another one are dropped.
	Rank kv.DPRank
	// BlockSize is the engine's KV block size in tokens.
	BlockSize int
	// MaxBlocks bounds the table of engine blocks.
	MaxBlocks int
	// FullReports: requests of this engine ask for full cache reports (vLLM's
	// kv_cache_report_mode=full).
	FullReports bool
	// CanList: the engine may be asked for the list of its blocks.
	CanList bool
	// Tokens is told the tokens of each block that an event stores, under the stream's
	// lock; nil: nobody wants them.
	Tokens tokens.Sink
	// Counters counts what is applied and dropped.
	Counters *Counters
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Cache is what one engine rank has cached.
type Cache struct {
	cfg    Config
	stream *residency.Stream
	count  *Counters

	known  dense.Table[engineBlock] // by engine hash
	names  names
	groups groupFilter
	hasher kv.Hasher
	park   park
	// parents have become known while runs wait for them.
	parents []parent

	// lowerTiers: the engine has announced blocks outside its device.
	lowerTiers bool
	// degraded: blocks were lost.
	degraded bool
	// unconfirmed: the state comes from a checkpoint, and no frame or replay has shown
	// yet that the engine is the same.
	unconfirmed bool
	// unreached: nobody has answered at the engine's endpoint yet.
	unreached bool

	// wantList: the engine should be asked for its list.
	wantList bool
	// unannounced are blocks on the engine's last list of which nothing else is known.
	unannounced map[kv.EngineHash]struct{}
	// hidden is what was known before a loss for which there was no list; nil: nothing.
	hidden *hidden
	// queuePredatesList: frames sent before the last list may still be queued. Stores
	// of device blocks that come before listedUntil may be on the list already.
	queuePredatesList bool
	listedUntil       time.Time

	version uint64
}

// engineBlock is a block that the engine announced; its key is the engine's hash. A
// known block has at least one reference.
type engineBlock struct {
	slot uint32 // of the block in the stream's table
	name uint32
	refs residency.Refs // copies, by tier
}

// New returns an empty mirror.
func New(cfg Config) *Cache {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Cache{cfg: cfg, stream: cfg.Stream, count: cfg.Counters, names: newNames(), park: newPark(defaultParkBytes)}
}

// Version changes with every change that a checkpoint should hold.
func (c *Cache) Version() uint64 { return c.version }

// Confirmed says that the engine is still the one whose state this is.
func (c *Cache) Confirmed() {
	if c.unconfirmed {
		c.unconfirmed = false
		c.stream.Update(c.updateHealth)
	}
}

// Unreached says that nobody has answered at the engine's endpoint yet. The stream is
// degraded until Reached, or until a batch comes.
func (c *Cache) Unreached() {
	c.unreached = true
	c.stream.Update(c.updateHealth)
}

// Reached says that the engine is there, though it may have nothing to say.
func (c *Cache) Reached() {
	if c.unreached {
		c.unreached = false
		c.stream.Update(c.updateHealth)
	}
}

// Restarted forgets everything: another incarnation of the engine, which holds
// nothing, has taken its place.
func (c *Cache) Restarted() {
	c.groups.reset()
	c.lowerTiers, c.degraded = false, false
	c.forget()
}

// Lost forgets every block: events are missing that may have removed any of them.
func (c *Cache) Lost() {
	c.degraded = true
	c.forget()
}

func (c *Cache) forget() {
	c.unconfirmed, c.wantList, c.hidden = false, false, nil
	c.known.Clear()
	c.names = newNames()
	c.park.reset()
	c.unannounced = nil
	c.version++
	c.stream.Update(func(tx *residency.Tx) {
		tx.Clear()
		c.updateHealth(tx)
	})
}

// Tick does what time alone makes due. Wake says when.
func (c *Cache) Tick() {
	if !c.park.empty() {
		c.stream.Update(c.updateHealth)
	}
}

// Wake is when Tick must be called next; zero: not before the next change.
func (c *Cache) Wake() time.Time {
	if at := c.park.overdueAt(); c.cfg.Now().Before(at) {
		return at
	}
	return time.Time{}
}

// updateHealth tells the stream how far it can be trusted, after a change and whenever
// time alone may have changed that.
func (c *Cache) updateHealth(tx *residency.Tx) {
	c.count.Known.Store(uint64(c.known.Len()))
	c.count.ParkedBytes.Store(uint64(c.park.bytes))
	c.count.Unlisted.Store(uint64(len(c.unannounced)))
	overdue := c.park.overdueAt()
	health := kvevent.HealthExact
	if c.degraded || c.unconfirmed || c.unreached || len(c.unannounced) > 0 || !overdue.IsZero() && !c.cfg.Now().Before(overdue) {
		health = kvevent.HealthDegraded
	}
	tx.SetHealth(health)
}

// drop counts n blocks that are not applied.
func (c *Cache) drop(r dropReason, n int) {
	c.count.dropped[r].Add(uint64(n))
	c.degraded = c.degraded || dropReasons[r].losesState
}
