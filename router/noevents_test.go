package router_test

import (
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
