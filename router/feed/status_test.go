package feed

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// statusOf is the status of an agent with some publishers.
func statusOf(t interface{ Fatal(...any) }, agent uint64, publishers ...*sourcetest.Publisher) source.Frame {
	s := kvevent.AgentStatus{Agent: agent}
	for _, p := range publishers {
		a, err := kvevent.DecodeAnnouncement(p.Announcement())
		if err != nil {
			t.Fatal(err)
		}
		s.Streams = append(s.Streams, kvevent.StreamStatus{PublisherID: a.PublisherID, Kind: a.Owner.Kind,
			Status: kvevent.Status{LastEventID: a.LastEventID, Digest: a.Digest, Blocks: a.Blocks, Health: a.Health}})
	}
	return source.Frame{Kind: source.FrameAnnouncement, Data: kvevent.AppendAgentStatus(nil, &s), Source: 1}
}

// TestAStatusIsWorthTheAnnouncementsOfItsStreams: two Sets get the same events, of which some are lost, and
// then either announcements or one status. Both ask the same and end in one state.
func TestAStatusIsWorthTheAnnouncementsOfItsStreams(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1000, 0)
		publishers := []*sourcetest.Publisher{
			sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 5), sourcetest.NewPublisher(12, sourcetest.WorkerOwner(2), 5),
			sourcetest.NewPublisher(13, kv.PoolOwner(5), 0),
		}
		byID := make(map[uint64]*sourcetest.Publisher)
		single, whole := freshFeeds(nil), freshFeeds(nil)
		asked := make(map[*Set][]kvevent.QueryRequest)
		send := func(s *Set, fr source.Frame) {
			due := s.Frame(fr, now)
			for len(due) > 0 {
				q := due[0]
				asked[s] = append(asked[s], q.Request)
				due = append(due[1:], s.Answered(&q, byID[q.Publisher].Answer(q.Request), nil, now)...)
			}
		}
		for _, p := range publishers {
			byID[p.Meta.PublisherID] = p
			for _, s := range []*Set{single, whole} {
				send(s, source.Frame{Kind: source.FrameAnnouncement, Data: p.Announcement(), Source: 1})
			}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Second)
			p := rapid.SampledFrom(publishers).Draw(t, "publisher")
			switch rapid.SampledFrom([]string{"events", "events", "loss", "drift", "health", "announce", "announce"}).Draw(t, "step") {
			case "events", "loss":
				fr := p.Store(kv.TierDevice, sourcetest.Tokens(uint32(rapid.IntRange(1, 9).Draw(t, "prompt"))))
				if rapid.Bool().Draw(t, "arrives") {
					send(single, fr)
					send(whole, fr)
				}
			case "drift":
				p.Drift(kv.SequenceHash(rapid.Uint64().Draw(t, "hash")))
			case "health":
				p.Meta.Health = rapid.SampledFrom([]kvevent.Health{kvevent.HealthExact, kvevent.HealthDegraded}).Draw(t, "health")
			case "announce":
				for _, p := range publishers {
					send(single, source.Frame{Kind: source.FrameAnnouncement, Data: p.Announcement(), Source: 1})
				}
				send(whole, statusOf(t, 99, publishers...))
			}
			if diff := cmp.Diff(single.States(), whole.States()); diff != "" {
				t.Fatalf("(-announcements +status)\n%s", diff)
			}
			if !slices.Equal(asked[single], asked[whole]) {
				t.Fatalf("asked %+v with announcements, %+v with a status", asked[single], asked[whole])
			}
		}
		if got := whole.TakeStrangers(nil, now); len(got) > 0 {
			t.Fatalf("agents asked although all publishers are known: %v", got)
		}
	})
}

// TestAStatusKeepsPublishersAlive without one announcement; without statuses they are forgotten.
func TestAStatusKeepsPublishersAlive(t *testing.T) {
	s, p, now := freshFeeds(t), sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0), time.Unix(1000, 0)
	s.Frame(p.Announce(), now)
	for range 60 {
		now = now.Add(time.Second / 2)
		s.Tick(now)
		s.Frame(statusOf(t, 99, p), now)
	}
	if got := s.Stats(); got.Feeds != 1 || got.Statuses != 60 {
		t.Errorf("%+v", got)
	}
	for range 40 {
		now = now.Add(time.Second / 2)
		s.Tick(now)
	}
	if got := s.Stats(); got.Feeds != 0 || got.Expired != 1 {
		t.Errorf("%+v", got)
	}
}

// TestAnAgentWithAnUnknownPublisherIsAskedAFewAtATime: until its publishers have announced themselves, with
// growing pauses, and not for publishers that will not be followed.
func TestAnAgentWithAnUnknownPublisherIsAskedAFewAtATime(t *testing.T) {
	s, now := freshFeeds(t), time.Unix(1000, 0)
	known, p := sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0), sourcetest.NewPublisher(12, sourcetest.WorkerOwner(2), 0)
	s.Frame(known.Announce(), now)
	var asked []time.Duration
	for began := now; now.Sub(began) < 10*time.Second; now = now.Add(time.Second / 2) {
		s.Frame(statusOf(t, 99, known, p), now)
		for _, one := range s.TakeStrangers(nil, now) {
			if one != (Stranger{Source: 1, Agent: 99}) {
				t.Fatalf("%+v", one)
			}
			asked = append(asked, now.Sub(began))
		}
	}
	if want := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}; !slices.Equal(asked, want) {
		t.Errorf("asked after %v, want %v", asked, want)
	}
	s.Frame(p.Announce(), now)
	now = now.Add(time.Minute)
	s.Frame(statusOf(t, 99, known, p), now)
	if got := s.TakeStrangers(nil, now); len(got) > 0 {
		t.Errorf("asked although all are known: %v", got)
	}
	if got := s.Stats(); got.Strangers != 20 || got.AgentsAsked != 4 {
		t.Errorf("%+v", got)
	}

	refused := sourcetest.NewPublisher(13, sourcetest.WorkerOwner(3), 0).Of("m", 0)
	s.Frame(refused.Announce(), now)
	s.Frame(p.Goodbye(), now)
	s.Frame(statusOf(t, 98, refused, p), now)
	if got := s.TakeStrangers(nil, now); len(got) > 0 {
		t.Errorf("asked for a refused publisher and one that is gone: %v", got)
	}
	for agent := range uint64(2 * maxStrangers) {
		s.Frame(statusOf(t, 100+agent, sourcetest.NewPublisher(1000+agent, sourcetest.WorkerOwner(agent+9), 0)), now)
	}
	if got := s.TakeStrangers(nil, now); len(got) != askedPerTick || len(s.strangers) > maxStrangers {
		t.Errorf("%d agents asked at once, %d known", len(got), len(s.strangers))
	}
	s.Tick(now.Add(3 * lastAsk))
	if len(s.strangers) != 0 {
		t.Errorf("%d agents are left", len(s.strangers))
	}
}

// TestADamagedStatusIsCounted and not taken for a goodbye.
func TestADamagedStatusIsCounted(t *testing.T) {
	s, p := freshFeeds(t), sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0)
	fr := statusOf(t, 99, p)
	fr.Data = fr.Data[:len(fr.Data)-1]
	s.Frame(fr, time.Unix(1000, 0))
	if got := s.Stats(); got.Undecodable != 1 || got.Statuses != 0 {
		t.Errorf("%+v", got)
	}
}
