package registry

import "github.com/blockyard-ai/blockyard/internal/kv"

// batchKeys is the number of keys that are looked up together. It exceeds the number of cache
// misses that a core has in flight, and fetched lines are still in the cache when they are used.
const batchKeys = 64

// FindAll sets ids[i] to Find(&keys[i]) for every key. ids must be as long as keys. In a large
// registry a lookup has several cache misses. FindAll takes each step for a group of keys before
// the next step, so that the misses overlap.
func (r *Registry) FindAll(keys []kv.StoredKey, ids []ID) {
	ids = ids[:len(keys)]
	for len(keys) > 0 {
		n := min(len(keys), batchKeys)
		r.findBatch(keys[:n], ids[:n])
		keys, ids = keys[n:], ids[n:]
	}
}

// findBatch sets ids[i] to the entry of keys[i] or to None, for at most batchKeys keys. Each loop
// does one step for all keys and little besides the one load that misses the CPU's cache, so that
// the misses overlap.
func (r *Registry) findBatch(keys []kv.StoredKey, ids []ID) {
	var (
		fps   [batchKeys]uint32
		segs  [batchKeys]*segment
		words [batchKeys]word
	)
	for i := range keys {
		fps[i] = r.fingerprint(&keys[i])
	}
	for i := range keys {
		segs[i] = r.index.segment(r.index.root(fps[i]))
	}
	for i := range keys {
		words[i] = segs[i][home(fps[i])]
	}
	for i := range keys {
		ids[i] = segs[i].candidate(fps[i], words[i])
	}
	for i := range keys {
		switch id := ids[i]; {
		case id == None && r.index.continued == 0:
		case id == None || r.At(id).Key != keys[i]:
			// Another key has the fingerprint, or the segment is continued.
			ids[i] = r.index.find(fps[i], &keys[i], &r.entries)
		}
	}
}
