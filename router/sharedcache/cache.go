package sharedcache

import (
	"context"
	"errors"

	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Cache knows which blocks of a prompt a shared cache holds.
type Cache interface {
	// CheckBlocks returns the positions of the full blocks of blockSize tokens that
	// the cache holds in namespace, the cache salt, empty for none. It should
	// return soon after the end of ctx; tokens are borrowed until it does.
	CheckBlocks(ctx context.Context, tokens []uint32, blockSize int, namespace string) (schedule.SharedHits, error)
}

// ErrLeftAlone: the service failed too often just now and was not asked.
var ErrLeftAlone = errors.New("the shared cache failed and is left alone for a while")
