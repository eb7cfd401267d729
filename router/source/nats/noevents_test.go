package nats_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/routertest"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestWithoutEventsNATSBringsAnnouncementsAlone: nothing subscribes to the events of the
// cluster, and workers are candidates all the same.
func TestWithoutEventsNATSBringsAnnouncementsAlone(t *testing.T) {
	s := sourcetest.StartServer(t)
	n, err := natssource.Connect(natssource.Options{URL: s.ClientURL(), NoEvents: true})
	if err != nil {
		t.Fatal(err)
	}
	r := routertest.RunRouter(t, router.Options{Config: routertest.Configured(func(c *config.Config) { c.UseKVEvents = false })}, n)
	p := sourcetest.NewWirePublisher(t, s.ClientURL(), "default", sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0))
	sourcetest.Eventually(t, "known", func() bool {
		p.SendAnnouncement("default")
		p.SendStore("default", sourcetest.Tokens(1))
		return len(r.Workers()) == 1
	})
	subs, err := s.Subsz(&server.SubszOptions{Subscriptions: true})
	if err != nil {
		t.Fatal(err)
	}
	events, announcements := strings.TrimSuffix(kvevent.AllEventsSubject("default"), "*"), false
	for _, sub := range subs.Subs {
		if strings.HasPrefix(sub.Subject, events) {
			t.Errorf("somebody subscribes to %s", sub.Subject)
		}
		announcements = announcements || sub.Subject == kvevent.AllAnnounceSubject("default")
	}
	if !announcements {
		t.Errorf("nobody subscribes to announcements: %+v", subs.Subs)
	}
	if m, err := r.FindBestMatch(t.Context(), &router.Request{Tokens: sourcetest.Tokens(1)}); err != nil || m.Worker.ID != 1 || m.Hits[kv.TierDevice] != 0 || m.Quality != feed.Fallback {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := natssource.Connect(natssource.Options{URL: s.ClientURL(), NoEvents: true, JetStream: true}); err == nil {
		t.Error("a stream of events was accepted without events")
	}
}
