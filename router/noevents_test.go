package router_test

import (
	"context"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestSkippingEventsIsLogged: in Dynamo's words, when events are off or count for nothing.
func TestSkippingEventsIsLogged(t *testing.T) {
	for want, change := range map[string]func(*config.Config){
		"Skipping KV event subscription (use_kv_events=false, overlap_score_credit=1)": func(c *config.Config) { c.UseKVEvents = false },
		"Skipping KV event subscription (use_kv_events=true, overlap_score_credit=0)":  func(c *config.Config) { c.OverlapScoreCredit = 0 },
		"": func(*config.Config) {},
	} {
		core, logs := observer.New(zap.InfoLevel)
		if _, err := router.New(router.Options{Config: routertest.Configured(change), Log: zap.New(core)}, sourcetest.NewTransport()); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, line := range logs.All() {
			got += line.Message
		}
		if got != want {
			t.Errorf("logged %q, want %q", got, want)
		}
	}
}

// TestBeginAndEndAreLogged: in Dynamo's words.
func TestBeginAndEndAreLogged(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	r, err := router.New(router.Options{Log: zap.New(core)}, sourcetest.NewTransport())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"KV Routing initialized", "Dropping KvRouter - cancelling background tasks"} {
		if logs.FilterMessage(want).Len() != 1 {
			t.Errorf("not logged: %s", want)
		}
	}
}
