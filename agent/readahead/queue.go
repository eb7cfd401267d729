package readahead

import (
	"context"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// maxHints bounds the hints of a node that wait.
const maxHints = 32

// Stats count the hints of routers, which send one for a request on its way to an engine
// whose pool has a part of the prompt on disk.
type Stats struct {
	// Taken hints were looked up. Idle are the taken ones that began no read: the blocks are in host
	// memory, are being read, or are not there.
	Taken uint64 `json:"taken"`
	Idle  uint64 `json:"idle"`
	// Blocks are the reads from disk that hints began.
	Blocks uint64 `json:"blocks"`
	// Dropped hints found the queue full. Bad ones could not be decoded.
	Dropped uint64 `json:"dropped"`
	Bad     uint64 `json:"bad"`
}

// Queue begins the disk reads that routers' hints ask for. Make one with New.
type Queue struct {
	queue                             chan hint
	log                               *zap.Logger
	taken, idle, blocks, dropped, bad atomic.Uint64
}

// hint is an encoded kvevent.ReadAhead for a pool.
type hint struct {
	pool *blockmgr.Pool
	data []byte
}

// New returns an empty queue.
func New(log *zap.Logger) *Queue {
	return &Queue{queue: make(chan hint, maxHints), log: log}
}

// Add queues a hint for a pool. It does not wait. A full queue drops the hint: by the time of its turn the engine would have asked.
func (r *Queue) Add(pool *blockmgr.Pool, data []byte) {
	select {
	case r.queue <- hint{pool, data}:
	default:
		r.dropped.Add(1)
	}
}

// Run begins the reads of one hint at a time until ctx ends. Pool.Prefetch bounds the reads.
func (r *Queue) Run(ctx context.Context) {
	id := blockmgr.NewIdentifier()
	for {
		select {
		case <-ctx.Done():
			return
		case h := <-r.queue:
			r.begin(id, &h)
		}
	}
}

func (r *Queue) begin(id *blockmgr.Identifier, h *hint) {
	m, err := kvevent.DecodeReadAhead(h.data)
	if err != nil {
		r.bad.Add(1)
		r.log.Debug("a read-ahead hint is ignored", zap.Error(err))
		return
	}
	ns := h.pool.Namespace()
	started := h.pool.Prefetch(id.Prompt(id.Root(h.pool.NamespaceID(), "", "", m.Salt), m.Tokens, int(ns.BlockSize)))
	r.taken.Add(1)
	r.blocks.Add(uint64(started))
	if started == 0 {
		r.idle.Add(1)
	}
}

// Stats returns the counters.
func (r *Queue) Stats() Stats {
	return Stats{
		Taken: r.taken.Load(), Idle: r.idle.Load(), Blocks: r.blocks.Load(),
		Dropped: r.dropped.Load(), Bad: r.bad.Load(),
	}
}
