package decide

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/sharedcache"
)

// warnInterval is the least time between two warnings of the same kind.
const warnInterval = 10 * time.Second

// sharedAnswer is what a shared cache said.
type sharedAnswer struct {
	hits schedule.SharedHits
	err  error
	took time.Duration
}

// maxAsking bounds the questions to a shared cache that have no answer.
const maxAsking = 1024

var (
	errAsking = fmt.Errorf("%d questions to the shared cache have no answer yet", maxAsking)
	errLate   = errors.New("the shared cache does not answer in time")
)

// asker asks a shared cache, of which it expects nothing: neither that it answers nor
// that it looks at its context.
type asker struct {
	cache   sharedcache.Cache
	timeout time.Duration
	// asking holds a token for each question without an answer.
	asking chan struct{}
}

// newAsker is nil when there is no cache to ask.
func newAsker(o *Options) *asker {
	if o.SharedCache == nil {
		return nil
	}
	return &asker{o.SharedCache, cmp.Or(o.SharedCacheTimeout, 250*time.Millisecond), make(chan struct{}, maxAsking)}
}

// ask begins to ask the cache; the result waits for the answer and must be called. An
// adapter or a multimodal object changes a block, and the cache is asked by tokens and
// namespace alone: such requests are not for it.
func (s *asker) ask(ctx context.Context, q *Query, blockSize int) func() sharedAnswer {
	select {
	case s.asking <- struct{}{}:
	default:
		return func() sharedAnswer { return sharedAnswer{err: errAsking} }
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, errLate)
	answer := make(chan sharedAnswer, 1)
	// The caller may have its tokens back while the cache still looks at them.
	tokens, namespace := slices.Clone(q.Tokens), q.Salt
	go func() {
		defer func() { <-s.asking }()
		var a sharedAnswer
		a.hits, a.err = s.cache.CheckBlocks(ctx, tokens, blockSize, namespace)
		a.took = time.Since(begin)
		answer <- a
	}()
	return func() sharedAnswer {
		defer cancel()
		select {
		case a := <-answer:
			return a
		case <-ctx.Done():
			return sharedAnswer{err: context.Cause(ctx), took: time.Since(begin)}
		}
	}
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
