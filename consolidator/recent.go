package consolidator

import "github.com/zeebo/xxh3"

// recentBatches is how many applied batches a rank can recognise; a replay that
// overlaps the live stream by more than this is told apart by number alone.
const recentBatches = 1024

// recent remembers the checksums of the last applied batches, so that a frame
// with an old number can be recognised as a duplicate, or as another engine's.
type recent struct {
	// entries is indexed by sequence number modulo its length; after is the
	// sequence number plus one, 0 for an empty entry.
	entries [recentBatches]struct{ after, sum uint64 }
}

func (r *recent) add(seq uint64, payload []byte) {
	e := &r.entries[seq%recentBatches]
	e.after, e.sum = seq+1, xxh3.Hash(payload)
}

// lookup reports whether batch seq is remembered, and if so whether payload is
// what it was.
func (r *recent) lookup(seq uint64, payload []byte) (remembered, same bool) {
	e := r.entries[seq%recentBatches]
	if e.after != seq+1 {
		return false, false
	}
	return true, e.sum == xxh3.Hash(payload)
}

func (r *recent) reset() { clear(r.entries[:]) }
