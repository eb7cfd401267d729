package consolidator

import "github.com/zeebo/xxh3"

// recentBatches is how many applied batches a rank can recognise. A frame that
// was replayed longer ago than this is told apart by its number alone.
const recentBatches = 1024

// applied is what is remembered of a batch that was applied.
type applied struct {
	// after is the sequence number plus one, 0 for an empty entry; sum is the
	// checksum of the payload.
	after, sum uint64
	// request is the number of the replay that brought it, 0 for a live frame.
	request uint64
}

// is reports whether payload is what was applied.
func (a *applied) is(payload []byte) bool { return a.sum == xxh3.Hash(payload) }

// recent remembers the last applied batches, so that a frame with an old number
// can be recognised as a duplicate, or as another engine's.
type recent struct {
	entries []applied // indexed by sequence number modulo its length
}

func newRecent(n int) recent { return recent{make([]applied, n)} }

func (r *recent) add(seq uint64, payload []byte, request uint64) {
	r.entries[seq%uint64(len(r.entries))] = applied{seq + 1, xxh3.Hash(payload), request}
}

// find returns batch seq; false when it is not remembered.
func (r *recent) find(seq uint64) (applied, bool) {
	e := r.entries[seq%uint64(len(r.entries))]
	return e, e.after == seq+1
}

func (r *recent) reset() { clear(r.entries) }
