package agent

import (
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// maxQueuedLoads bounds the LOADs that wait for one worker to read. Beside them
// lies what its socket holds.
const maxQueuedLoads = 256

// workerLink is the agent's side of a worker's connection. A LOAD is queued and
// sent by the link's own goroutine, so that a worker that does not read delays
// neither the scheduler nor the other workers.
type workerLink struct {
	*link
	loads chan queuedLoad
	// joined is set by session.join, for the goroutine that reads the connection.
	joined bool
}

// queuedLoad is a LOAD and the slots that it names. Workers share both.
type queuedLoad struct {
	m     *proto.Load
	slots []blockmgr.Slot
}

func newWorkerLink(c *proto.Conn, pool *blockmgr.Pool) *workerLink {
	return &workerLink{link: newLink(c, pool), loads: make(chan queuedLoad, maxQueuedLoads)}
}

// offer queues a LOAD. When there is no room the worker has stopped reading: its
// connection is closed, and its reader takes it out of the session.
func (l *workerLink) offer(q queuedLoad) bool {
	select {
	case l.loads <- q:
		return true
	default:
		l.conn.Close()
		return false
	}
}

// send sends queued LOADs and announces extents as they become ready, until stop
// is closed or the connection ends.
func (l *workerLink) send(stop <-chan struct{}) {
	extents, cancel := l.pool.WatchExtents()
	defer cancel()
	for {
		var err error
		select {
		case e, ok := <-extents:
			if !ok {
				return // the pool closes
			}
			err = l.announce(e)
		case q := <-l.loads:
			err = l.link.send(proto.TypeLoad, 0, q.m, q.slots)
		case <-stop:
			return
		}
		if err != nil {
			l.conn.Close() // most have; a frame that cannot be made has not
			return
		}
	}
}
