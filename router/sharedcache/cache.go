package sharedcache

import (
	"context"
	"errors"

	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Cache knows which blocks of a prompt a shared cache holds.
type Cache interface {
	// CheckBlocks returns the positions of the full blocks of blockSize tokens that
	// the cache holds in namespace. namespace is the cache salt, possibly empty.
	// CheckBlocks should return soon after the end of ctx, and borrows tokens until
	// then.
	CheckBlocks(ctx context.Context, tokens []uint32, blockSize int, namespace string) (schedule.SharedHits, error)
}

// ErrPaused says that the service was not asked because it has just failed several
// times.
var ErrPaused = errors.New("the shared cache failed and is paused")
