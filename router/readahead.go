package router

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/source"
)

const (
	// maxHints bounds the hints that wait to be sent. hintSenders bounds those being sent, so that one
	// agent that does not answer delays few others.
	maxHints    = 64
	hintSenders = 4
	// hintTimeout bounds the sending of one hint. A later one is of no use.
	hintTimeout = time.Second
)

// ReadAheadStats count read-ahead hints. The metric names follow "blockyard_router_".
type ReadAheadStats struct {
	Sent    uint64 `metric:"read_ahead_sent" help:"Hints sent to the agent of the chosen worker, because a part of the prompt is on its disk."`
	Dropped uint64 `metric:"read_ahead_dropped" help:"Hints dropped because too many were waiting."`
	Failed  uint64 `metric:"read_ahead_failed" help:"Hints that no transport could send."`
}

// readAhead tells the agent of a chosen worker which blocks to read from disk while the request is on
// its way.
type readAhead struct {
	queue                 chan readAheadHint
	send                  func(context.Context, *readAheadHint) error
	log                   *zap.Logger
	sent, dropped, failed atomic.Uint64
}

// readAheadHint is an encoded kvevent.ReadAhead for the pool of a worker.
type readAheadHint struct {
	worker kv.Worker
	data   []byte
}

// newReadAhead returns nil if transport t sends no hints.
func newReadAhead(t source.Transport, publisher func(kv.Worker) (uint64, bool), log *zap.Logger) *readAhead {
	hinter, ok := t.(source.Hinter)
	if !ok {
		return nil
	}
	return &readAhead{
		queue: make(chan readAheadHint, maxHints), log: log,
		send: func(ctx context.Context, h *readAheadHint) error {
			id, ok := publisher(h.worker)
			if !ok {
				return source.ErrNoHints
			}
			return hinter.Hint(ctx, id, h.data)
		},
	}
}

// decided queues a hint for a booked request whose worker has blocks of the prompt on disk. It does
// not wait. The agent names blocks by their tokens alone, so that prompts with an adapter, with
// objects, or known by hashes have no hint.
func (r *readAhead) decided(d *decide.Decision) {
	hits, q := d.Match.Expected(), d.Query
	if r == nil || !d.Match.Booked || hits[kv.TierDisk] == 0 || q.LoRA != "" || q.Hashed != nil || q.HasObjects() {
		return
	}
	tokens := min(int(hits.Total())*d.BlockSize, len(q.Tokens), kvevent.MaxReadAheadTokens)
	m := kvevent.ReadAhead{Tokens: q.Tokens[:tokens], Salt: kv.BoundedName(q.Salt)}
	select {
	case r.queue <- readAheadHint{d.Match.Worker, kvevent.AppendReadAhead(nil, &m)}:
	default:
		r.dropped.Add(1)
	}
}

// run sends hints until ctx ends.
func (r *readAhead) run(ctx context.Context) {
	if r == nil {
		return
	}
	var senders sync.WaitGroup
	for range hintSenders {
		senders.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case h := <-r.queue:
					r.sendOne(ctx, &h)
				}
			}
		})
	}
	senders.Wait()
}

func (r *readAhead) sendOne(ctx context.Context, h *readAheadHint) {
	ctx, cancel := context.WithTimeout(ctx, hintTimeout)
	defer cancel()
	if err := r.send(ctx, h); err != nil {
		r.failed.Add(1)
		r.log.Debug("a read-ahead hint is not sent", zap.Stringer("worker", h.worker), zap.Error(err))
		return
	}
	r.sent.Add(1)
}

func (r *readAhead) stats() ReadAheadStats {
	if r == nil {
		return ReadAheadStats{}
	}
	return ReadAheadStats{Sent: r.sent.Load(), Dropped: r.dropped.Load(), Failed: r.failed.Load()}
}
