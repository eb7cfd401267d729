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

// warnInterval is the least time between two warnings of one kind.
const warnInterval = 10 * time.Second

// sharedAnswer is the answer of a shared cache.
type sharedAnswer struct {
	hits schedule.SharedHits
	err  error
	took time.Duration
}

// maxPending bounds the unanswered questions to a shared cache.
const maxPending = 1024

var (
	errPending = fmt.Errorf("%d questions to the shared cache have no answer yet", maxPending)
	errLate    = errors.New("the shared cache does not answer in time")
)

// asker asks a shared cache that may never answer and may ignore its context.
type asker struct {
	cache   sharedcache.Cache
	timeout time.Duration
	// pending holds a token for each unanswered question.
	pending chan struct{}
}

// newAsker returns nil without a cache.
func newAsker(o *Options) *asker {
	if o.SharedCache == nil {
		return nil
	}
	return &asker{o.SharedCache, cmp.Or(o.SharedCacheTimeout, 250*time.Millisecond), make(chan struct{}, maxPending)}
}

// ask begins to ask the cache. The result waits for the answer, and must be called.
// The cache is asked by tokens and namespace only, so prompts with an adapter or a
// multimodal object are not for it.
func (s *asker) ask(ctx context.Context, q *Query, blockSize int) func() sharedAnswer {
	select {
	case s.pending <- struct{}{}:
	default:
		return func() sharedAnswer { return sharedAnswer{err: errPending} }
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, errLate)
	answer := make(chan sharedAnswer, 1)
	// The cache may still read the tokens after the caller has them back.
	tokens, namespace := slices.Clone(q.Tokens), q.Salt
	go func() {
		defer func() { <-s.pending }()
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

// sharedHits returns the hits of an answer, or nil for a failure. Failures are
// counted and sometimes logged.
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
