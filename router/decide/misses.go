package decide

import (
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// promptOf returns what the decision knew of the prompt, for package miss. w has the prompt's
// hashes. request is as the scheduler left it, decided when its hits were found.
func promptOf(w *scratch, request *schedule.Request, chosen *schedule.Result, decided time.Time) *miss.Prompt {
	p := &miss.Prompt{
		Tokens: request.Tokens, BlockSize: request.BlockSize, Worker: chosen.Worker, Hits: chosen.Expected(),
		Pool: chosen.Members.List[chosen.Member].Pool, Decided: decided,
		Blocks: kv.AppendSequence(slices.Grow([]kv.SequenceHash(nil), len(w.blocks.locals)), w.blocks.locals),
	}
	for i := range request.Hits {
		h := &request.Hits[i]
		other := request.Members.List[h.Member].Worker
		if n := totalOf(h.Hits); n > p.BestBlocks && other != p.Worker {
			p.Best, p.BestBlocks = other, n
		}
	}
	return p
}

// CachedBlocks returns how many leading blocks of the prompt the engine is expected to find: those that the
// worker has in any tier, and those in flight.
func (m *Match) CachedBlocks() int { return totalOf(m.Expected()) }

// totalOf returns the number of blocks in all tiers.
func totalOf(h index.Hits) int {
	var n int
	for _, blocks := range h {
		n += int(blocks)
	}
	return n
}
