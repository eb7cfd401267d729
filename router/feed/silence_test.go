package feed

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// newSilentSet is a Set of n publishers that were heard at now, without a router.
func newSilentSet(t *testing.T, n uint64, now time.Time) (*Set, []*sourcetest.Publisher) {
	t.Helper()
	s := freshFeeds(t)
	var all []*sourcetest.Publisher
	for i := range n {
		p := sourcetest.NewPublisher(i+1, sourcetest.WorkerOwner(i+1), 0)
		s.Frame(p.Announce(), now)
		all = append(all, p)
	}
	return s, all
}

// runFor lets the set look around ten times a second, as a router does. The results are
// the time at the end and the queries to send.
func (s *Set) runFor(d time.Duration, now time.Time) (time.Time, []Query) {
	var due []Query
	for end := now.Add(d); now.Before(end); now = now.Add(100 * time.Millisecond) {
		due = append(due, s.Tick(now)...)
	}
	return now, due
}

// TestAStallOfTheRouterExpiresNobody: a process that stood still for longer than the feed
// timeout, and whose queue has kept few of the announcements, takes nobody for dead. Whoever
// stays silent from then on is.
func TestAStallOfTheRouterExpiresNobody(t *testing.T) {
	now := time.Unix(1000, 0)
	const publishers = 3000
	s, all := newSilentSet(t, publishers, now)
	now, _ = s.runFor(2*time.Second, now)
	now = now.Add(time.Minute) // it stands still
	for _, p := range all[:100] {
		s.Frame(p.Announce(), now)
	}
	s.Tick(now)
	if got := s.Stats(); got.Expired != 0 || got.Stalls != 1 || got.Feeds != publishers {
		t.Fatalf("%d of %d feeds, %d expired, %d stalls", got.Feeds, publishers, got.Expired, got.Stalls)
	}
	for range 14 {
		for _, p := range all[:publishers-1] {
			s.Frame(p.Announce(), now)
		}
		now, _ = s.runFor(time.Second, now)
	}
	if got := s.Stats(); got.Expired != 1 || got.Feeds != publishers-1 {
		t.Errorf("%d feeds, %d expired; want the one that stayed silent", got.Feeds, got.Expired)
	}
}

// TestDroppedAnnouncementsAreNoSilence: while the transport drops messages a publisher has
// more time.
func TestDroppedAnnouncementsAreNoSilence(t *testing.T) {
	now := time.Unix(1000, 0)
	s, _ := newSilentSet(t, 1, now)
	for i := range uint64(50) {
		s.NoteDrops(i, now)
		now, _ = s.runFor(time.Second, now)
	}
	if got := s.Stats(); got.Expired != 0 {
		t.Fatalf("%d expired while messages are dropped", got.Expired)
	}
	s.NoteDrops(49, now)
	s.runFor(16*time.Second, now)
	if got := s.Stats(); got.Expired != 1 {
		t.Errorf("%d expired, want the silent one", got.Expired)
	}
}
