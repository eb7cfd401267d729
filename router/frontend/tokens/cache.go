package tokens

import (
	"container/list"
	"sync"
)

// entryBytes is what an entry of the cache takes besides its tokens: key, list element,
// map slot and headers.
const entryBytes = 256

// cache keeps prompts by key up to a bound of bytes. It evicts the least recently used.
type cache struct {
	mu      sync.Mutex
	limit   int64
	bytes   int64
	entries map[key]*list.Element
	order   list.List // of *entry, the most recently used first
	evicted uint64
}

type entry struct {
	key    key
	prompt Prompt
	bytes  int64
}

func newCache(limit int64) *cache {
	return &cache{limit: limit, entries: make(map[key]*list.Element)}
}

func (c *cache) get(k key) (Prompt, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[k]
	if !ok {
		return Prompt{}, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*entry).prompt, true
}

// put stores a prompt unless it is larger than the whole cache.
func (c *cache) put(k key, p Prompt) {
	size := int64(entryBytes + 4*cap(p.Tokens) + 64*cap(p.Objects))
	if size > c.limit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[k]; ok {
		c.remove(e)
	}
	for c.bytes+size > c.limit {
		c.remove(c.order.Back())
		c.evicted++
	}
	c.entries[k] = c.order.PushFront(&entry{k, p, size})
	c.bytes += size
}

func (c *cache) remove(e *list.Element) {
	old := c.order.Remove(e).(*entry)
	delete(c.entries, old.key)
	c.bytes -= old.bytes
}

// size returns the number of entries, their bytes and the number of evictions so far.
func (c *cache) size() (entries int, bytes int64, evicted uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries), c.bytes, c.evicted
}
