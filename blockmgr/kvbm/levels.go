package kvbm

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// settleTime is how long a reset waits for blocks that are being sealed, written
// or read.
const settleTime = 2 * time.Second

// errEngines: a level is not the manager's to look at or to empty.
var errEngines = fmt.Errorf("its blocks are the engine's own, which must be asked itself: %w", blockmgr.ErrNoTier)

// Status counts the slots of a level by what a reset would do to them. The error
// is blockmgr.ErrNoTier for a level that is not kept here, which G1 never is.
func (m *Manager) Status(level config.CacheLevel) (blockmgr.TierStatus, error) {
	tier, err := level.Tier()
	if err != nil {
		return blockmgr.TierStatus{}, err
	}
	if tier == kv.TierDevice {
		return blockmgr.TierStatus{}, fmt.Errorf("status of cache level %s: %w", level, errEngines)
	}
	st, err := m.pool.Status(tier)
	if err != nil {
		return st, fmt.Errorf("status of cache level %s: %w", level, err)
	}
	return st, nil
}

// Reset empties a level, or refuses to (blockmgr.ErrActive) and changes nothing
// while a block of it is in use. For up to two seconds, and until ctx ends, it
// first waits for blocks that are on their way to or from disk. The error is
// blockmgr.ErrNoTier for a level that is not kept here, which G1 never is.
func (m *Manager) Reset(ctx context.Context, level config.CacheLevel) error {
	tier, err := level.Tier()
	if err != nil {
		return err
	}
	if err := m.empty(ctx, tier); err != nil {
		return fmt.Errorf("cache level %s: %w", level, err)
	}
	return nil
}

// empty is Reset by the name of a tier.
func (m *Manager) empty(ctx context.Context, tier kv.Tier) error {
	if tier == kv.TierDevice {
		return fmt.Errorf("reset: %w", errEngines)
	}
	settle, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	_ = m.pool.Quiesce(settle) // what is in use after that, the pool says itself
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	if err := m.pool.Reset(tier); err != nil {
		return err
	}
	m.resets.Add(1)
	return nil
}

// Resets counts the resets that emptied a level, and the requests on the reset
// channel that came to nothing.
func (m *Manager) Resets() (done, refused uint64) { return m.resets.Load(), m.resetsRefused.Load() }

func (m *Manager) resetRefused(level config.CacheLevel, err error) {
	m.resetsRefused.Add(1)
	m.log.Warn("request to empty a cache level is refused", zap.Stringer("level", level), zap.Error(err))
}
