package decide

import (
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// explanation logs a decision at debug level: the blocks of the prompt, and the
// cost of each worker.
type explanation struct {
	candidates []schedule.Candidate
	on         bool
}

// input logs the query.
func (e *explanation) input(log *zap.Logger, q *Query, blockSize int, locals []kv.LocalHash) {
	if e.on = log.Core().Enabled(zap.DebugLevel); !e.on {
		return
	}
	hashes := make([]uint64, len(locals))
	for i, l := range locals {
		hashes[i] = uint64(l)
	}
	log.Debug("[ROUTING_INPUT] request local hashes", zap.String("request", q.ID), zap.Int("isl_tokens", len(q.Tokens)),
		zap.Int("block_size", blockSize), zap.Int("num_blocks", len(locals)), zap.Uint64s("local_hashes", hashes))
}

// attach lets the scheduler explain a request that is going to be logged.
func (e *explanation) attach(request *schedule.Request) {
	e.candidates = e.candidates[:0]
	if e.on {
		request.Explain = func(c *schedule.Candidate) { e.candidates = append(e.candidates, *c) }
	}
}

// choice logs one line per worker.
func (e *explanation) choice(log *zap.Logger, id string, chosen kv.Worker) {
	if !e.on {
		return
	}
	for i := range e.candidates {
		c := &e.candidates[i]
		log.Debug(c.Formula(), zap.String("request", id), zap.Bool("chosen", c.Worker == chosen))
	}
}
