package router_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/routertest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// tenSeconds predicts that for every prefill.
type tenSeconds struct{}

func (tenSeconds) PredictPrefillDuration(int, int, int) (time.Duration, error) {
	return 10 * time.Second, nil
}

// A prefill's load fades by the model that was handed in when the configuration asks for
// it, and not otherwise; to ask for it without one is an error.
func TestPrefillLoadModelIsObeyed(t *testing.T) {
	aic := routertest.Configured(func(c *config.Config) { c.RouterPrefillLoadModel = config.LoadModelAIC })
	for _, c := range []struct {
		config *config.Config
		left   int
	}{{nil, 100}, {aic, 50}} {
		routertest.OnBench(t, router.Options{Config: c.config, PrefillLoadEstimator: tenSeconds{}, FeedTimeout: time.Hour}, func(b *routertest.Bench) {
			b.Send(b.Publisher(0x11, sourcetest.WorkerOwner(1), 0).Announce())
			if _, err := b.Router.FindBestMatch(t.Context(), &router.Request{ID: "a", Tokens: make([]uint32, 100), UpdateStates: true}); err != nil {
				t.Fatal(err)
			}
			b.Pass(5 * time.Second)
			loads, err := b.PotentialLoads(&router.Request{Tokens: []uint32{1}})
			if err != nil || loads[0].PrefillTokens != c.left+1 {
				t.Errorf("%+v, %v; want %d tokens left and one of this request", loads, err, c.left)
			}
		})
	}
	if _, err := router.New(router.Options{Config: aic}, sourcetest.NewTransport()); err == nil || !strings.Contains(err.Error(), "router_prefill_load_model aic: needs") {
		t.Errorf("error %v", err)
	}
}

// Requests beyond the bound are routed, and the log says once what that means.
func TestUnbookedRequestsAreSaidOnce(t *testing.T) {
	core, logs := observer.New(zapcore.WarnLevel)
	c := routertest.Configured(func(c *config.Config) { c.MaxActiveRequests = 1 })
	routertest.OnBench(t, router.Options{Config: c, Log: zap.New(core)}, func(b *routertest.Bench) {
		b.Send(b.Publisher(0x11, sourcetest.WorkerOwner(1), 0).Announce())
		for i := range 4 {
			m, err := b.Router.FindBestMatch(t.Context(), &router.Request{ID: fmt.Sprint(i), Tokens: []uint32{1}, UpdateStates: true})
			if err != nil || m.Booked != (i == 0) {
				t.Errorf("request %d: %+v, %v", i, m, err)
			}
		}
		if n := logs.FilterMessageSnippet("router_max_active_requests").Len(); n != 1 {
			t.Errorf("%d lines, want one", n)
		}
		if n := b.Router.Stats().Requests.Unbooked; n != 3 {
			t.Errorf("%d are counted, want 3", n)
		}
	})
}
