package kvbm

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// resetLog holds the log lines with one message.
type resetLog struct {
	logs    *observer.ObservedLogs
	message string
}

func (l resetLog) Len() int { return l.logs.FilterMessage(l.message).Len() }

// observeResets returns the log lines of resets that were done and refused.
func observeResets(place *Place) (done, refused resetLog) {
	core, logs := observer.New(zap.InfoLevel)
	place.Log = zap.New(core)
	return resetLog{logs, "cache level emptied"}, resetLog{logs, "request to empty a cache level is refused"}
}

func TestResetChannelEmptiesTheTierAndEventsSaySo(t *testing.T) {
	cfg, place := both(t, 8)
	reset, told := make(chan config.CacheLevel), &listener{}
	cfg.Reset, cfg.Events = reset, told
	done, _ := observeResets(&place)
	c := open(t, cfg, place)
	blocks := c.sequence(1, 5)
	c.add(1, blocks)
	told.take()
	for i, level := range []config.CacheLevel{config.G3, config.G2} {
		reset <- level
		waitFor(t, "the reset is done", func() bool { return done.Len() == i+1 })
		tier, err := level.Tier()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := told.take(), removed(tier, blocks); !slices.Equal(got, want) {
			t.Errorf("after %s told %q, want %q", level, got, want)
		}
		if st, err := c.Pool().Status(tier); err != nil || st != (blockmgr.TierStatus{Empty: 8}) {
			t.Errorf("after the reset %s is %+v, %v", level, st, err)
		}
	}
	if n := c.find(blocks); n != 0 {
		t.Errorf("%d blocks are left", n)
	}
	if st := c.Pool().Stats(); st.BlocksReset != 10 {
		t.Errorf("%d copies were reset, want 10", st.BlocksReset)
	}
}

func TestResetIsRefusedWhileABlockIsInUseAndTheNextOneIsServed(t *testing.T) {
	cfg, place := both(t, 8)
	reset := make(chan config.CacheLevel)
	cfg.Reset = reset
	done, refused := observeResets(&place)
	c := open(t, cfg, place)
	blocks := c.sequence(1, 3)
	held := c.store(1, blocks)
	for i, level := range []config.CacheLevel{config.G2, config.G1, config.G4, 0} {
		reset <- level
		waitFor(t, "the reset is refused", func() bool { return refused.Len() == i+1 })
	}
	if n := c.find(blocks); n != 3 {
		t.Errorf("%d of 3 blocks are left", n)
	}
	release(held)
	reset <- config.G2
	waitFor(t, "the reset is done", func() bool { return done.Len() == 1 })
	close(reset)
	if n := c.find(blocks); n != 3 || c.Pool().Stats().DiskHits != 3 {
		t.Errorf("%d of 3 blocks are found, of which on disk %d", n, c.Pool().Stats().DiskHits)
	}
}

func TestLevelThatIsNotKeptHereIsAnErrorThatSaysWhoseItIs(t *testing.T) {
	cfg, place := both(t, 4)
	cfg.DiskLayout = nil
	c := open(t, cfg, place)
	for level, want := range map[config.CacheLevel]string{
		config.G1: "its blocks are the engine's own, which must be asked itself: no such tier here",
		config.G3: "tier disk of pool " + c.Pool().NamespaceID().String() + ": no such tier here",
		config.G4: "tier external of pool " + c.Pool().NamespaceID().String() + ": no such tier here",
	} {
		if err := c.Reset(t.Context(), level); !errors.Is(err, blockmgr.ErrNoTier) || err.Error() != "cache level "+level.String()+": reset: "+want {
			t.Errorf("reset: %v", err)
		}
	}
	for _, level := range []config.CacheLevel{0, 5} {
		if err := c.Reset(t.Context(), level); err == nil {
			t.Errorf("reset of level %d", level)
		}
	}
}

func TestResetSaysWhatIsInUseAndEndsWithItsContext(t *testing.T) {
	cfg, place := both(t, 4)
	c := open(t, cfg, place)
	held := c.store(1, c.sequence(1, 2))
	if err := c.Reset(t.Context(), config.G2); !errors.Is(err, blockmgr.ErrActive) {
		t.Errorf("reset of blocks in use: %v", err)
	}
	if st, err := c.Pool().Status(kv.TierHost); err != nil || st != (blockmgr.TierStatus{Active: 2, Empty: 2}) {
		t.Errorf("status %+v, %v", st, err)
	}
	release(held)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Reset(ended, config.G2); !errors.Is(err, context.Canceled) {
		t.Errorf("reset with a context that has ended: %v", err)
	}
	if n := c.find(c.sequence(1, 2)); n != 2 {
		t.Errorf("%d of 2 blocks are left", n)
	}
}
