package config

import (
	"context"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// ServeResets empties tiers as levels arrive on Reset, one at a time and in
// order, until ctx ends or Reset is closed; without Reset it returns at once.
//
// Empty empties a tier or, while blocks of it are in use, refuses to. Refused is
// told of a request that came to nothing, and why; the next one is served.
func (c *Config) ServeResets(ctx context.Context, empty func(context.Context, kv.Tier) error, refused func(CacheLevel, error)) {
	for c.Reset != nil {
		select {
		case <-ctx.Done():
			return
		case level, open := <-c.Reset:
			if !open {
				return
			}
			tier, err := level.Tier()
			if err == nil {
				err = empty(ctx, tier)
			}
			if err != nil {
				refused(level, err)
			}
		}
	}
}
