package sequence

import "github.com/zeebo/xxh3"

// Applied identifies an applied batch by its number and checksum.
type Applied struct {
	// After is the batch's number plus one, 0 for an empty entry. Sum is the checksum of
	// its payload.
	After, Sum uint64
	// request is the number of the replay that brought the batch, 0 for a live frame.
	request uint64
}

// is reports whether payload has the bytes of the batch.
func (a *Applied) is(payload []byte) bool { return a.Sum == xxh3.Hash(payload) }

// recent remembers the last applied batches. It tells a duplicate with an old number
// from a frame of another incarnation.
type recent struct {
	entries []Applied // indexed by sequence number modulo its length
}

func newRecent(n int) recent { return recent{make([]Applied, n)} }

func (r *recent) add(seq uint64, payload []byte, request uint64) {
	r.entries[seq%uint64(len(r.entries))] = Applied{seq + 1, xxh3.Hash(payload), request}
}

// find returns batch seq. It returns false when the batch is forgotten.
func (r *recent) find(seq uint64) (Applied, bool) {
	e := r.entries[seq%uint64(len(r.entries))]
	return e, e.After == seq+1
}

func (r *recent) reset() { clear(r.entries) }

// heldFrames are the live frames that wait for a replay, bounded in number and bytes.
// Frames without room are remembered as a hole behind the held ones.
type heldFrames struct {
	maxFrames, maxBytes int

	frames []frame
	bytes  int
	// overflowAt is the number of the first frame without room.
	overflowAt uint64
	overflowed bool
}

// push appends a live frame that waits for a replay. It returns false when there is no room: the
// frame is lost, and its number is kept. One frame always fits.
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

// first returns the oldest held frame.
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

// takeOverflow returns the number of the first frame without room, once.
func (h *heldFrames) takeOverflow() (seq uint64, ok bool) {
	ok = h.overflowed
	h.overflowed = false
	return h.overflowAt, ok
}
