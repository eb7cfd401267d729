package router

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

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

// TestWithoutEventsAgentsAreNotAskedForThem: the request says so.
func TestWithoutEventsAgentsAreNotAskedForThem(t *testing.T) {
	for noEvents, want := range map[bool]string{true: "/v1/events?events=none", false: "/v1/events"} {
		asked := make(chan string, 100)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked <- r.URL.RequestURI()
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		h, err := ConnectHTTP(HTTPOptions{Agents: []string{server.URL}, NoEvents: noEvents})
		if err != nil {
			t.Fatal(err)
		}
		if got := <-asked; got != want {
			t.Errorf("asked for %s, want %s", got, want)
		}
		h.Close()
		server.Close()
	}
}

// TestSkippingEventsIsLogged: in Dynamo's words, when events are off or count for nothing.
func TestSkippingEventsIsLogged(t *testing.T) {
	for want, change := range map[string]func(*config.Config){
		"Skipping KV event subscription (use_kv_events=false, overlap_score_credit=1)": func(c *config.Config) { c.UseKVEvents = false },
		"Skipping KV event subscription (use_kv_events=true, overlap_score_credit=0)":  func(c *config.Config) { c.OverlapScoreCredit = 0 },
		"": func(*config.Config) {},
	} {
		core, logs := observer.New(zap.InfoLevel)
		if _, err := New(Options{Config: configured(change), Log: zap.New(core)}, &testTransport{}); err != nil {
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
