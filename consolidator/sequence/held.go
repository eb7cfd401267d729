package sequence

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
