package feed

import (
	"bytes"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// TestFencedPublishersAreBounded: many are forgotten, and counted, when there are more.
func TestFencedPublishersAreBounded(t *testing.T) {
	s := freshFeeds(t)
	now := time.Now()
	for i := range uint64(maxFenced + 3) {
		s.fenceLocked(&kvevent.Announcement{PublisherID: i + 1, Owner: sourcetest.WorkerOwner(1)}, now, i%2 == 0)
	}
	if len(s.fenced) != maxFenced || s.counters.Unfenced != 3 {
		t.Errorf("%d are fenced and %d forgotten, want %d and 3", len(s.fenced), s.counters.Unfenced, maxFenced)
	}
	s.sweepFencedLocked(now.Add(fencedMaxAge))
	for _, p := range s.fenced {
		if p.gone {
			t.Fatal("one that has said goodbye is still remembered")
		}
	}
	if s.sweepFencedLocked(now.Add(fencedMaxAge + 1)); len(s.fenced) != 0 {
		t.Errorf("%d are still fenced", len(s.fenced))
	}
}

// TestACursorAheadOfItsPublisherIsRepaired: an answer that claimed too much hides
// every later event; announcements that stay behind the cursor show it.
func TestACursorAheadOfItsPublisherIsRepaired(t *testing.T) {
	s, p, now := freshFeeds(t), sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0), time.Unix(1000, 0)
	s.Frame(p.Announce(), now)
	s.feeds[11].cursor = 1000
	for i := range uint32(5) {
		s.Frame(p.Store(kv.TierDevice, sourcetest.Tokens(i)), now)
	}
	asked := 0
	for range 4 {
		due := s.Frame(p.Announce(), now)
		asked += len(due)
		s.answer(p, due, now)
		now = now.Add(time.Second)
	}
	if i := s.States()[0]; i.Cursor != 5 || i.Health != kvevent.HealthExact || i.Counters.DivergencesRepaired != 1 || asked != 1 {
		t.Errorf("feed %+v, want it repaired with one question; %d were asked", i, asked)
	}
}

// TestIncompleteFeedsAreNotSaved: what a feed that is being repaired holds is not
// the truth at any cursor.
func TestIncompleteFeedsAreNotSaved(t *testing.T) {
	s, now := freshFeeds(t), time.Unix(1000, 0)
	p, q := sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0), sourcetest.NewPublisher(12, sourcetest.WorkerOwner(2), 0)
	for _, f := range []source.Frame{p.Announce(), q.Announce(), p.Store(kv.TierDevice, sourcetest.Tokens(1)), q.Store(kv.TierDevice, sourcetest.Tokens(2))} {
		s.Frame(f, now)
	}
	p.Store(kv.TierDevice, sourcetest.Tokens(3)) // lost
	s.Frame(p.Store(kv.TierDevice, sourcetest.Tokens(4)), now)
	var out bytes.Buffer
	if err := s.save(&out); err != nil {
		t.Fatal(err)
	}
	images, _, err := readSnapshot(&out)
	if err != nil || len(images) != 1 || images[0].announcement.PublisherID != 12 {
		t.Errorf("snapshot %+v, %v; want worker 2's feed alone", images, err)
	}
}

// TestTheSizeOfASnapshotIsThatOfTheIndex: a publisher may announce any number of blocks.
func TestTheSizeOfASnapshotIsThatOfTheIndex(t *testing.T) {
	s, now := freshFeeds(t), time.Unix(1000, 0)
	p := sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0)
	s.Frame(p.Announce(), now)
	for i := range uint32(1000) {
		s.Frame(p.Store(kv.TierDevice, sourcetest.Tokens(i)), now)
	}
	if size := s.snapshotSize(); size < 8000 || size > 21000 {
		t.Errorf("a snapshot of 1,000 blocks takes up to %d bytes", size)
	}
	a := s.feeds[11].announcement
	a.Blocks, a.GroupBlocks, a.LastEventID = 1<<62, 1<<61, 1000
	s.Frame(source.Frame{Kind: source.FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)}, now)
	if got := s.feeds[11].announcement.Blocks; got != 1<<62 {
		t.Fatalf("announced %d blocks", got)
	}
	if size := s.snapshotSize(); size > 21000 {
		t.Errorf("a snapshot of a publisher that has announced too many blocks takes up to %d bytes", size)
	}
}

// TestAWorkerOfASnapshotIsNotResurrected: its blocks are there, and its announcements of
// before it died; nobody is sent to it.
func TestAWorkerOfASnapshotIsNotResurrected(t *testing.T) {
	s, now := freshFeeds(t), time.Unix(1000, 0)
	dead := sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0)
	if taken, err := s.restoreFeed(&feedImage{announcement: dead.Meta}, now); !taken || err != nil {
		t.Fatal(taken, err)
	}
	old := dead.Announce()
	old.Age = time.Minute
	for _, f := range []source.Frame{{Kind: source.FrameDisconnected}, old, old, {Kind: source.FrameConnected}} {
		s.Frame(f, now)
	}
	if n := len(s.Workers()); n != 0 {
		t.Errorf("%d workers after the stream was read", n)
	}
	s.Frame(dead.Announce(), now)
	if n := len(s.Workers()); n != 1 {
		t.Errorf("%d workers after the publisher was heard of, want 1", n)
	}
}

// TestASnapshotOfAnEarlierVersionMayHaveNamesThatAreNoText: they are left out.
func TestASnapshotOfAnEarlierVersionMayHaveNamesThatAreNoText(t *testing.T) {
	s := freshFeeds(t)
	image := feedImage{announcement: sourcetest.NewPublisher(12, sourcetest.WorkerOwner(2), 0).Of("b\xff", 4).Meta, cursor: 1}
	if taken, err := s.restoreFeed(&image, time.Now()); err != nil || taken || len(s.models) != 0 {
		t.Errorf("taken %t, %v, %d models", taken, err, len(s.models))
	}
}
