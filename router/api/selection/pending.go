package selection

import (
	"cmp"
	"container/list"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/decide"
)

// Defaults of CacheLimits.
const (
	DefaultTTL     = 2 * time.Minute
	DefaultEntries = 4096
	DefaultBytes   = 256 << 20
)

// CacheLimits bound the choices that wait to be booked. Zero values mean the defaults.
type CacheLimits struct {
	TTL     time.Duration
	Entries int
	Bytes   int64
}

// choice is a choice of POST /select that POST /reservations may book.
type choice struct {
	key    choiceKey
	worker kv.Worker
	query  *decide.Query
	// cached is how many tokens of the prompt need no computing.
	cached  int
	expires time.Time
	bytes   int64
}

// choiceKey names a choice. Every partition has names of its own.
type choiceKey struct {
	partition
	id string
}

// cache keeps choices until they are booked or expire. A full cache drops the oldest. Its
// methods may be called from any goroutine.
type cache struct {
	limits CacheLimits

	mu sync.Mutex
	// order has the *choices, oldest first.
	order *list.List
	byKey map[choiceKey]*list.Element
	bytes int64
}

func newCache(l CacheLimits) *cache {
	l.TTL, l.Entries, l.Bytes = cmp.Or(l.TTL, DefaultTTL), cmp.Or(l.Entries, DefaultEntries), cmp.Or(l.Bytes, DefaultBytes)
	return &cache{limits: l, order: list.New(), byKey: make(map[choiceKey]*list.Element)}
}

// choiceOverhead is the memory of a choice besides its hashes and names.
const choiceOverhead = 512

// put keeps a choice until it is booked or expires, in place of the one with the same key. It
// drops the oldest choices beyond the cache's limits.
func (c *cache) put(e *choice) {
	h := e.query.Hashed
	e.bytes = choiceOverhead + int64(8*(len(h.Locals)+len(h.Sequence))+len(e.key.id)+len(e.key.model)+len(e.key.group)+len(e.query.LoRA)+len(e.query.Salt))
	e.expires = time.Now().Add(c.limits.TTL)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(c.byKey[e.key])
	c.byKey[e.key] = c.order.PushBack(e)
	c.bytes += e.bytes
	for c.order.Len() > c.limits.Entries || c.bytes > c.limits.Bytes || c.order.Len() > 0 && c.oldestLocked().expires.Before(time.Now()) {
		c.removeLocked(c.order.Front())
	}
}

func (c *cache) oldestLocked() *choice { return c.order.Front().Value.(*choice) }

// get returns the choice with the key k; nil when there is none or it has expired.
func (c *cache) get(k choiceKey) *choice {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.byKey[k]
	if at == nil || at.Value.(*choice).expires.Before(time.Now()) {
		c.removeLocked(at)
		return nil
	}
	return at.Value.(*choice)
}

// drop forgets the choice with a key. With only it forgets no other than that one.
func (c *cache) drop(k choiceKey, only *choice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.byKey[k]; at != nil && (only == nil || at.Value.(*choice) == only) {
		c.removeLocked(at)
	}
}

// removeLocked removes an element; nil is none.
func (c *cache) removeLocked(at *list.Element) {
	if at == nil {
		return
	}
	e := c.order.Remove(at).(*choice)
	delete(c.byKey, e.key)
	c.bytes -= e.bytes
}
