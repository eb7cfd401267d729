package zmqsink

import "iter"

// maxHistoryBytes bounds the payloads that are held for replays.
const maxHistoryBytes = 64 << 20

// history holds the payloads of the last batches: up to a number, and up to
// maxHistoryBytes. It belongs to the sending goroutine.
type history struct {
	ring  [][]byte // batch seq is at seq modulo len
	first uint64
	next  uint64
	bytes int
}

func newHistory(batches int) history { return history{ring: make([][]byte, batches)} }

// add keeps batch next, whose payload it owns from then on, or notes that there is
// none of that number. Older ones make room; one that is larger than all the room is
// not held.
func (h *history) add(payload []byte) {
	if len(payload) > maxHistoryBytes {
		payload = nil
	}
	for h.first < h.next && (h.next-h.first == uint64(len(h.ring)) || h.bytes+len(payload) > maxHistoryBytes) {
		old := &h.ring[h.first%uint64(len(h.ring))]
		h.bytes -= len(*old)
		*old = nil
		h.first++
	}
	h.ring[h.next%uint64(len(h.ring))] = payload
	h.bytes += len(payload)
	h.next++
}

// from are the batches from number start on that are held, the oldest first.
func (h *history) from(start uint64) iter.Seq2[uint64, []byte] {
	return func(yield func(uint64, []byte) bool) {
		for seq := max(start, h.first); seq < h.next; seq++ {
			payload := h.ring[seq%uint64(len(h.ring))]
			if payload != nil && !yield(seq, payload) {
				return
			}
		}
	}
}
