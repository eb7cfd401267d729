package zmqsink

import "sync"

// Bounds of what waits for the sending goroutine.
const (
	maxQueueEvents = 64 << 10
	maxRawPayloads = 64 << 10
	maxRawBytes    = 64 << 20
	// maxHistoryBytes bounds the payloads that are held for replays.
	maxHistoryBytes = 64 << 20
)

// What became of a payload.
const (
	rawQueued = iota
	rawDropped
	rawClosed
)

// rawQueue holds an engine's payloads, in order. A nil payload marks where payloads had
// to be dropped.
type rawQueue struct {
	mu       sync.Mutex
	payloads [][]byte
	bytes    int
	closed   bool
}

// add keeps a payload. Without room it drops the payload and marks the place; the mark
// may go beyond the bounds by one.
func (q *rawQueue) add(payload []byte) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch n := len(q.payloads); {
	case q.closed:
		return rawClosed
	case n < maxRawPayloads && q.bytes+len(payload) <= maxRawBytes:
		q.payloads = append(q.payloads, payload)
		q.bytes += len(payload)
		return rawQueued
	case n == 0 || q.payloads[n-1] != nil:
		q.payloads = append(q.payloads, nil)
	}
	return rawDropped
}

// take exchanges the queue for an empty one.
func (q *rawQueue) take(empty [][]byte) [][]byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.payloads
	q.payloads, q.bytes = empty[:0], 0
	return taken
}

// close refuses further payloads.
func (q *rawQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.payloads, q.bytes = nil, 0
}
