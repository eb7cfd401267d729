package api

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestARouterAsksTheIndexOfAnother: over NATS, with as many hits as the other router finds. Without an
// answer it decides by load, and says so.
func TestARouterAsksTheIndexOfAnother(t *testing.T) {
	url := sourcetest.StartServer(t).ClientURL()
	with := func(set func(c *config.Config)) *natsRouter {
		o := router.Options{Config: routertest.Configured(set)}
		return newNATSRouterWith(t, url, 7, o, drainTimeout)
	}
	serves := with(func(c *config.Config) { c.ServeIndexer = true })
	asks := with(func(c *config.Config) { c.UseRemoteIndexer = true })
	holder := sourcetest.NewWirePublisher(t, url, "c", sourcetest.NewPublisher(8, sourcetest.WorkerOwner(8), 0))
	prompt := sourcetest.Tokens(1, 2, 3)
	sourcetest.Eventually(t, "the holder at both routers", func() bool {
		holder.SendAnnouncement("c")
		return len(serves.router.Workers()) == 2 && len(asks.router.Workers()) == 2
	})
	holder.SendStore("c", prompt)
	match := func() router.Match {
		t.Helper()
		m, err := asks.router.FindBestMatch(t.Context(), &router.Request{Tokens: prompt})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	sourcetest.Eventually(t, "three blocks at the holder", func() bool {
		holder.SendAnnouncement("c")
		m := match()
		return m.Worker.ID == 8 && m.OverlapBlocks() == 3 && m.Quality == feed.Exact
	})
	overlap := func() (blocks uint32, quality feed.Quality) {
		t.Helper()
		m, err := asks.router.Model("")
		if err != nil {
			t.Fatal(err)
		}
		all, quality, err := m.Overlaps(&router.Request{Tokens: prompt})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			blocks += o.Hits[kv.TierDevice]
		}
		return blocks, quality
	}
	if blocks, quality := overlap(); blocks != 3 || quality != feed.Exact {
		t.Errorf("an overlap of %d blocks, %s", blocks, quality)
	}
	if n := asks.router.Stats().Index.Blocks; n != 0 {
		t.Errorf("the router that asks keeps %d blocks", n)
	}
	before := asks.router.Stats().Remote // some questions came before the server knew the model
	if s := serves.router.Stats().Served; s.Queries == 0 || s.Queries != before.Queries-before.Failures {
		t.Errorf("asked %+v, served %+v", before, s)
	}
	serves.stop()
	if blocks, quality := overlap(); blocks != 0 || quality != feed.Fallback {
		t.Errorf("an overlap of %d blocks, %s, without a router that serves", blocks, quality)
	}
	for range 7 {
		if m := match(); m.OverlapBlocks() != 0 || m.Quality != feed.Fallback {
			t.Errorf("%d blocks, quality %s without a router that serves", m.OverlapBlocks(), m.Quality)
		}
	}
	if s := asks.router.Stats().Remote; s.Failures != before.Failures+5 || s.Skipped != before.Skipped+3 {
		t.Errorf("%+v, want 5 failures and 3 questions that were not asked, after %+v", s, before)
	}
	again := with(func(c *config.Config) { c.ServeIndexer = true })
	sourcetest.Eventually(t, "three blocks after another router serves", func() bool {
		holder.SendAnnouncement("c")
		m := match()
		return m.OverlapBlocks() == 3
	})
	if _, err := again.client.Request("blockyard.c.indexer", []byte{0x80}, nats.DefaultTimeout); err != nil {
		t.Error(err)
	}
	if s := again.router.Stats().Served; s.Refused != 1 {
		t.Errorf("%+v, want one refused question", s)
	}
}
