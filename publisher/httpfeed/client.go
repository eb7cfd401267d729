package httpfeed

import (
	"encoding/binary"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

const (
	// writeTimeout bounds the time in which a client reads nothing before its stream ends,
	// endTimeout the time after the hub has begun to close.
	writeTimeout = 5 * time.Second
	endTimeout   = 500 * time.Millisecond
)

// client is one stream. Its handler takes frames out of the queue.
type client struct {
	limit   int
	control *http.ResponseController
	// noEvents: the client wants announcements and loads alone.
	noEvents bool
	wake     publisher.Alarm // the queue has something
	dropped  atomic.Uint64

	mu    sync.Mutex
	queue [][]byte
	bytes int
}

func newClient(limit int, w http.ResponseWriter) *client {
	return &client{limit: limit, control: http.NewResponseController(w), wake: publisher.NewAlarm()}
}

// offer queues a frame, which other clients share. It returns false, and counts the frame as
// dropped, when the queue would exceed the limit in bytes. An empty queue takes any frame.
func (c *client) offer(frame []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes > 0 && c.bytes+len(frame) > c.limit {
		c.dropped.Add(1)
		return false
	}
	c.queue = append(c.queue, frame)
	c.bytes += len(frame)
	c.wake.Raise()
	return true
}

// take empties the queue into dst. The queue has room before the frames are written, so a
// client has at most twice the limit in queue and write together.
func (c *client) take(dst [][]byte) [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	dst = append(dst, c.queue...)
	clear(c.queue)
	c.queue, c.bytes = c.queue[:0], 0
	return dst
}

// endWrite bounds an unfinished write by endTimeout. A writer without deadlines keeps the
// server's.
func (c *client) endWrite() { _ = c.control.SetWriteDeadline(time.Now().Add(endTimeout)) }

// heartbeat returns the frame that says how many frames this client lost.
func (c *client) heartbeat() []byte {
	frame := kvevent.BeginStreamFrame(nil, kvevent.StreamHeartbeat)
	frame = binary.LittleEndian.AppendUint64(frame, c.dropped.Load())
	return kvevent.EndStreamFrame(frame, 0)
}
