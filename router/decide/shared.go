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

// maxPending bounds the unanswered queries to a shared cache.
const maxPending = 1024

var (
	errPending = fmt.Errorf("%d queries to the shared cache are unanswered", maxPending)
	errLate    = errors.New("shared cache timed out")
)

// asker queries a shared cache that may never answer and may ignore its context.
type asker struct {
	cache   sharedcache.Cache
	timeout time.Duration
	// pending has an element for each unanswered query.
	pending chan struct{}
}

// newAsker returns an asker for the shared cache of o, nil without a cache.
func newAsker(o *Options) *asker {
	if o.SharedCache == nil {
		return nil
	}
	return &asker{o.SharedCache, cmp.Or(o.SharedCacheTimeout, 250*time.Millisecond), make(chan struct{}, maxPending)}
}

// ask asks the shared cache which blocks of a prompt it has, and does not wait. The caller
// calls the returned function once: it waits for the answer, until the timeout or the end of
// ctx. A cache sees only tokens and namespace, so q must have no adapter and no multimodal
// object.
func (s *asker) ask(ctx context.Context, q *Query, blockSize int) (answer func() sharedAnswer) {
	select {
	case s.pending <- struct{}{}:
	default: // a cache that ignores its context must not collect goroutines
		return func() sharedAnswer { return sharedAnswer{err: errPending} }
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, errLate)
	answers := make(chan sharedAnswer, 1) // a late answer must not block its goroutine
	// The cache may still read the tokens after the decision.
	tokens, namespace := slices.Clone(q.Tokens), q.Salt
	go func() {
		defer func() { <-s.pending }()
		var a sharedAnswer
		a.hits, a.err = s.cache.CheckBlocks(ctx, tokens, blockSize, namespace)
		a.took = time.Since(begin)
		answers <- a
	}()
	return func() sharedAnswer {
		defer cancel()
		select {
		case a := <-answers:
			return a
		case <-ctx.Done():
			return sharedAnswer{err: context.Cause(ctx), took: time.Since(begin)}
		}
	}
}

// sharedHits returns the hits of an answer, or nil for a failure. It counts failures and logs
// one per warnInterval.
func (r *Router) sharedHits(a *sharedAnswer) *schedule.SharedHits {
	if a.err == nil {
		return &a.hits
	}
	r.observer.SharedCacheFailed()
	now := int64(time.Since(r.start))
	if last := r.lastWarned.Load(); now-last >= int64(warnInterval) && r.lastWarned.CompareAndSwap(last, now) {
		r.log.Warn("shared cache failed; routing continues without it", zap.Error(a.err))
	}
	return nil
}
