package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestHitRatesSpanTheLastRequests(t *testing.T) {
	c := newCacheCounters(2)
	finish := func(hit ...kv.Tier) {
		var h requestHits
		h.add(0, 4, hit)
		c.finish(h.Hits)
	}
	finish(kv.TierHost, kv.TierHost, kv.TierHost, kv.TierHost)
	c.finish(config.Hits{}) // a request that asked for nothing
	finish(kv.TierHost, kv.TierDisk)
	if s := c.snapshot(); s.HostHitRate != 5./8 || s.DiskHitRate != 1./8 || s.Requests != 2 {
		t.Errorf("got %+v", s)
	}
	finish() // the first one is forgotten
	if s := c.snapshot(); s.HostHitRate != 1./8 || s.DiskHitRate != 1./8 || s.Requests != 2 {
		t.Errorf("got %+v", s)
	}
}

func TestBlocksThatAreAskedForAgainCountOnce(t *testing.T) {
	var h requestHits
	host, disk := kv.TierHost, kv.TierDisk
	for _, ask := range []struct {
		first   uint32
		count   int
		sources []kv.Tier
		matched int
	}{
		{0, 4, []kv.Tier{host, host}, 2},
		{0, 4, []kv.Tier{host, host, disk}, 1},
		{0, 0, nil, 0},
		{4, 2, []kv.Tier{host}, 1},
		{2, 4, []kv.Tier{disk, host, host}, 0},
	} {
		if got := h.add(ask.first, ask.count, ask.sources); got != ask.matched {
			t.Errorf("%+v: %d blocks counted", ask, got)
		}
	}
	if want := (requestHits{asked: 6, matched: 5, Hits: config.Hits{Blocks: 6, Host: 3, Disk: 1}}); h != want {
		t.Errorf("got %+v, want %+v", h, want)
	}
}

func TestHitRatesAreLoggedWhenTheyChangeAndNotTooOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.InfoLevel)
		c := newCacheCounters(100)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.logRates(ctx, time.Minute, zap.New(core))
		}()
		hit := config.Hits{Blocks: 1, Host: 1}
		for _, s := range []struct {
			h     config.Hits
			after time.Duration
			lines int
		}{
			{hit, 0, 1},                                     // at once
			{config.Hits{Blocks: 1}, 0, 1},                  // too soon
			{config.Hits{Blocks: 1}, time.Hour, 2},          // for both
			{config.Hits{Blocks: 3, Host: 1}, time.Hour, 2}, // as before
		} {
			c.finish(s.h)
			<-time.After(s.after)
			synctest.Wait()
			if n := logged.Len(); n != s.lines {
				t.Errorf("%+v: %d lines, want %d", s, n, s.lines)
			}
		}
		cancel()
		<-done
	})
}
