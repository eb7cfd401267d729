package sequence

import "github.com/zeebo/xxh3"

// applied is what is remembered of a batch that was applied.
type Applied struct {
	// after is the sequence number plus one, 0 for an empty entry; sum is the
	// checksum of the payload.
	After, Sum uint64
	// request is the number of the replay that brought it, 0 for a live frame.
	request uint64
}

// is reports whether payload is what was applied.
func (a *Applied) is(payload []byte) bool { return a.Sum == xxh3.Hash(payload) }

// recent remembers the last applied batches, so that a frame with an old number
// can be recognised as a duplicate, or as another engine's.
type recent struct {
	entries []Applied // indexed by sequence number modulo its length
}

func newRecent(n int) recent { return recent{make([]Applied, n)} }

func (r *recent) add(seq uint64, payload []byte, request uint64) {
	r.entries[seq%uint64(len(r.entries))] = Applied{seq + 1, xxh3.Hash(payload), request}
}

// find returns batch seq; false when it is not remembered.
func (r *recent) find(seq uint64) (Applied, bool) {
	e := r.entries[seq%uint64(len(r.entries))]
	return e, e.After == seq+1
}

func (r *recent) reset() { clear(r.entries) }
