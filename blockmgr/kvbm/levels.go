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

// settleTime bounds how long a reset waits for blocks that are being sealed, written or read.
const settleTime = 2 * time.Second

// Reset empties a level. It first waits for blocks on their way to or from disk, for two
// seconds at most. While a block of the level is in use, Reset changes nothing and returns
// blockmgr.ErrActive. The error is blockmgr.ErrNoTier for a level without a tier here; G1
// has none.
func (m *Manager) Reset(ctx context.Context, level config.CacheLevel) error {
	if err := m.reset(ctx, level); err != nil {
		return fmt.Errorf("cache level %s: %w", level, err)
	}
	m.log.Info("cache level emptied", zap.Stringer("level", level))
	return nil
}

// reset empties a level after its blocks on their way to or from disk have arrived, or settleTime.
// The error does not name the level.
func (m *Manager) reset(ctx context.Context, level config.CacheLevel) error {
	tier, err := level.Tier()
	if err != nil {
		return err
	}
	if tier == kv.TierDevice {
		return fmt.Errorf("reset: its blocks are the engine's own, which must be asked itself: %w", blockmgr.ErrNoTier)
	}
	settle, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	_ = m.pool.Quiesce(settle) // Pool.Reset reports blocks that are still in use
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	return m.pool.Reset(tier)
}

// resetRefused logs a request of the reset channel that emptied nothing.
func (m *Manager) resetRefused(level config.CacheLevel, err error) {
	m.log.Warn("request to empty a cache level is refused", zap.Stringer("level", level), zap.Error(err))
}
