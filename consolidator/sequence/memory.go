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

// heldFrames are the live frames that wait for a replay, bounded in number and
// bytes. What does not fit is counted, and remembered as a hole behind the
// frames that are held.
type heldFrames struct {
	maxFrames, maxBytes int

	frames []frame
	bytes  int
	// overflowAt is the number of the first frame that could not be held.
	overflowAt uint64
	overflowed bool
}

// push appends f; false when there is no room. One frame always fits.
func (h *heldFrames) push(f frame) bool {
	full := len(h.frames) >= h.maxFrames || h.bytes+len(f.payload) > h.maxBytes
	if full && len(h.frames) > 0 {
		if !h.overflowed {
			h.overflowed, h.overflowAt = true, f.seq
		}
		return false
	}
	h.frames = append(h.frames, f)
	h.bytes += len(f.payload)
	return true
}

// first is the oldest frame held.
func (h *heldFrames) first() (f frame, ok bool) {
	if len(h.frames) == 0 {
		return frame{}, false
	}
	return h.frames[0], true
}

// pop drops the oldest frame.
func (h *heldFrames) pop() {
	h.bytes -= len(h.frames[0].payload)
	h.frames[0] = frame{}
	h.frames = h.frames[1:]
	if len(h.frames) == 0 {
		h.frames = nil
	}
}

// takeOverflow returns the first frame that was not held, once.
func (h *heldFrames) takeOverflow() (seq uint64, ok bool) {
	ok = h.overflowed
	h.overflowed = false
	return h.overflowAt, ok
}
