package decide

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/schedule"
)

// warnInterval is the least time between two warnings of the same kind.
const warnInterval = 10 * time.Second

// sharedAnswer is what a shared cache said.
type sharedAnswer struct {
	hits schedule.SharedHits
	err  error
	took time.Duration
}

// askShared asks the shared cache on a goroutine that ends with its answer, which
// must be received. An adapter or a multimodal object changes a block, and the cache
// is asked by tokens and namespace alone: such requests are not for it.
func (r *Router) askShared(ctx context.Context, q *Query, blockSize int) <-chan sharedAnswer {
	answer := make(chan sharedAnswer, 1)
	go func() {
		begin := time.Now()
		var a sharedAnswer
		a.hits, a.err = r.shared.CheckBlocks(ctx, q.Tokens, blockSize, q.Salt)
		a.took = time.Since(begin)
		answer <- a
	}()
	return answer
}

// sharedHits are the hits of an answer; nil when it failed, which is counted and now
// and then logged.
func (r *Router) sharedHits(a *sharedAnswer) *schedule.SharedHits {
	if a.err == nil {
		return &a.hits
	}
	r.observer.SharedCacheFailed()
	now := int64(time.Since(r.start))
	if last := r.warned.Load(); now-last >= int64(warnInterval) && r.warned.CompareAndSwap(last, now) {
		r.log.Warn("the shared cache does not answer; routing goes on without it", zap.Error(a.err))
	}
	return nil
}
