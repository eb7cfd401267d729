package feed

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestGateBoundsWhatIsOnItsWay: whatever comes, is cut, is taken up again or is let go,
// the answers on their way stay within the bounds, no room is lost, and a feed that was
// refused is asked once there is room.
func TestGateBoundsWhatIsOnItsWay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := newQueryGate(16)
		now := time.Unix(1000, 0)
		feeds := make([]*feed, 6)
		flying := make(map[ticket]bool)
		for i := range feeds {
			feeds[i] = &feed{recovery: recovery{recovering: true}}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"ask": func(rt *rapid.T) {
				f := rapid.SampledFrom(feeds).Draw(rt, "feed")
				bytes := rapid.SampledFrom([]int{0, 1 << 20, largeBytes, largeBytes + 1, 1 << 30}).Draw(rt, "bytes")
				f.lastQuery++
				next := ticket{f, f.lastQuery}
				if f.partialDump != nil {
					g.resume(ticket{f, f.partialQuery}, next)
					f.partialQuery = f.lastQuery
				} else if !g.admit(next, bytes) {
					return
				}
				flying[next] = true
			},
			"answer": func(rt *rapid.T) {
				for at := range flying {
					if rapid.Bool().Draw(rt, "cut") {
						at.feed.partialDump, at.feed.partialQuery, at.feed.partialAt = &source.Answer{}, at.number, now
					}
					delete(flying, at)
					g.finish(at)
					return
				}
			},
			"let go": func(rt *rapid.T) { rapid.SampledFrom(feeds).Draw(rt, "feed").partialDump = nil },
			"sweep": func(rt *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(rt, "seconds")) * time.Second)
				g.sweep(now)
			},
			"next": func(*rapid.T) { g.next() },
			"": func(rt *rapid.T) {
				small, large := 0, 0
				for _, r := range g.reserved {
					if r.bytes > largeBytes {
						large++
					} else {
						small += r.bytes
					}
				}
				if large != g.largeAnswers || small != g.smallBytes || large > maxLarge || small > maxSmallBytes || len(g.waiting) > len(feeds) {
					rt.Fatalf("%d large and %d bytes, counted %d and %d; %d wait", large, small, g.largeAnswers, g.smallBytes, len(g.waiting))
				}
			},
		})
		for at := range flying {
			g.finish(at)
		}
		g.sweep(now.Add(partialMaxAge + 1))
		if len(g.reserved) > 0 || g.smallBytes != 0 || g.largeAnswers != 0 {
			rt.Fatalf("room is lost: %d answers, %d bytes, %d large", len(g.reserved), g.smallBytes, g.largeAnswers)
		}
	})
}

// TestEventsThatWaitAreThoseAfterTheDump: a feed that waits long for its turn to be asked
// has room for the events that come while the dump is read.
func TestEventsThatWaitAreThoseAfterTheDump(t *testing.T) {
	now := time.Unix(1000, 0)
	blocks := &blockSet{held: make(map[kv.SequenceHash]bool)}
	f := &feed{announcement: kvevent.Announcement{Owner: scriptOwner}, index: blocks}
	store := func(id uint64) kvevent.RouterEvent {
		return kvevent.RouterEvent{
			Owner: scriptOwner, ID: id, Kind: kvevent.Stored, Blocks: []kvevent.StoredBlock{{Hash: kv.SequenceHash(id)}},
		}
	}
	live := func(from, to uint64) {
		for id := from; id <= to; id++ {
			f.handleEvents([]kvevent.RouterEvent{store(id)}, now)
		}
	}
	f.handleAnnouncement(&kvevent.Announcement{Owner: scriptOwner, LastEventID: 1, Blocks: 1}, now)
	const asked = 2*maxWaitingEvents + 1
	live(2, asked)
	q, number, due := f.nextQuery(now)
	if !due || q.HasStart {
		t.Fatalf("query %+v, due %v; want one for everything", q, due)
	}
	const last = asked + maxWaitingEvents
	live(asked+1, last)
	a := &source.Answer{Kind: kvevent.QueryTreeDump, LastEventID: asked}
	for id := range uint64(asked) {
		a.Events = append(a.Events, store(id+1))
	}
	if err := f.handleAnswer(number, a, nil, now); err != nil {
		t.Fatal(err)
	}
	if f.cursor != last || f.recovering || len(blocks.held) != last {
		t.Errorf("cursor %d of %d, recovers %v, %d blocks", f.cursor, last, f.recovering, len(blocks.held))
	}
}

// TestAnAnswerMakesRoomForTheNextQuery: feeds that find all queries in flight ask as answers come, and do not
// wait for a tick.
func TestAnAnswerMakesRoomForTheNextQuery(t *testing.T) {
	s, now := freshFeeds(t), time.Unix(1000, 0)
	const feeds = 100
	publishers := make(map[uint64]*sourcetest.Publisher)
	var due []Query
	for id := range uint64(feeds) {
		p := sourcetest.NewPublisher(10+id, sourcetest.WorkerOwner(id+1), 0)
		p.Store(kv.TierDevice, sourcetest.Tokens(uint32(id)))
		publishers[p.Meta.PublisherID] = p
		due = append(due, s.Frame(p.Announce(), now)...)
	}
	for len(due) > 0 {
		if len(due) > s.gate.slots {
			t.Fatalf("%d queries in flight, limit %d", len(due), s.gate.slots)
		}
		q := due[0]
		due = append(due[1:], s.Answered(&q, publishers[q.Publisher].Answer(q.Request), nil, now)...)
	}
	if st := s.Stats(); st.ExactFeeds != feeds || len(s.gate.waiting) != 0 {
		t.Errorf("%d of %d feeds are exact, %d wait", st.ExactFeeds, feeds, len(s.gate.waiting))
	}
}
