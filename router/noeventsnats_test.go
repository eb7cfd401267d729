package router

import (
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/config"
)

// TestWithoutEventsNATSBringsAnnouncementsAlone: nothing subscribes to the events of the
// cluster, and workers are candidates all the same.
func TestWithoutEventsNATSBringsAnnouncementsAlone(t *testing.T) {
	s := startServer(t)
	n, err := ConnectNATS(NATSOptions{URL: s.ClientURL(), NoEvents: true})
	if err != nil {
		t.Fatal(err)
	}
	r := runRouter(t, Options{Config: configured(func(c *config.Config) { c.UseKVEvents = false })}, n)
	p := newWirePublisher(t, s.ClientURL(), "default", newTestPublisher(11, workerOwner(1), 0))
	eventually(t, "known", func() bool {
		p.sendAnnouncement("default")
		p.sendStore("default", promptTokens(1))
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
	if m, err := r.FindBestMatch(t.Context(), &Request{Tokens: promptTokens(1)}); err != nil || m.Worker.ID != 1 || m.Hits[kv.TierDevice] != 0 || m.Quality != QualityFallback {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := ConnectNATS(NATSOptions{URL: s.ClientURL(), NoEvents: true, JetStream: true}); err == nil {
		t.Error("a stream of events was accepted without events")
	}
}
