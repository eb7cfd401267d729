package proto

import (
	"context"
	"fmt"
	"sync/atomic"

	"go.uber.org/zap"
)

// LoadJob is a LOAD: copy Slots[i] into device block Blocks[i] for every i, in the layers of the
// KV group.
type LoadJob struct {
	Job    uint64
	Group  uint32
	Slots  []Slot
	Blocks []uint32
}

// maxQueuedLoads bounds the LOADs that a WorkerClient holds for its reader.
const maxQueuedLoads = 1024

// WorkerClient is the connection of one engine worker. It maps extents and receives
// LOADs.
type WorkerClient struct {
	*client
	loads   chan LoadJob
	dropped atomic.Uint64
}

// DialWorker returns a client of the agent in the role of a worker (the process that copies
// blocks) of session o.Hello.Session, registered with the geometry in reg. ctx bounds the
// handshake and the registration only. The caller closes the client.
func DialWorker(ctx context.Context, o ClientOptions, reg Register) (*WorkerClient, error) {
	c, err := dial(ctx, o, RoleWorker)
	if err != nil {
		return nil, err
	}
	w := &WorkerClient{client: c, loads: make(chan LoadJob, maxQueuedLoads)}
	c.notices[TypeLoad] = w.queue
	go func() {
		defer close(w.loads) // run, the only sender, has returned
		c.run()
	}()
	if err := c.call(ctx, TypeRegister, &reg, TypeOK, nil); err != nil {
		c.Close()
		return nil, fmt.Errorf("agent socket %s: %w", o.Socket, err)
	}
	return w, nil
}

// queue passes the LOAD in body to the reader of Loads. If the reader is far behind, queue drops
// the LOAD and counts it, so that the connection goes on. The engine treats a load that no worker
// reports as failed.
func (w *WorkerClient) queue(body []byte) error {
	var l Load
	if err := Decode(TypeLoad, body, &l); err != nil {
		return err
	}
	slots, _ := ParseSlots(nil, l.Slots) // Decode has checked both lengths
	blocks, _ := ParseTokens(nil, l.Blocks)
	select {
	case w.loads <- LoadJob{Job: l.Job, Group: l.Group, Slots: slots, Blocks: blocks}:
	default:
		w.log.Warn("a load was dropped: the queue is full", zap.Uint64("dropped", w.dropped.Add(1)))
	}
	return nil
}

// Loads delivers the LOADs in order. It is closed when the connection ends.
func (w *WorkerClient) Loads() <-chan LoadJob { return w.loads }

// Bye leaves the session in order. The worker must have no copy in flight.
func (w *WorkerClient) Bye(ctx context.Context, reason string) error { return w.bye(ctx, reason) }
