package feed

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// somethingHappens to a publisher, who tells of it.
func somethingHappens(t *rapid.T, p *sourcetest.Publisher) source.Frame {
	var ids []uint32
	for i := range rapid.IntRange(1, 6).Draw(t, "blocks") {
		ids = append(ids, uint32(i+1)+100*rapid.Uint32Range(0, 1).Draw(t, "branch"))
	}
	tier := rapid.SampledFrom([]kv.Tier{kv.TierDevice, kv.TierHost}).Draw(t, "tier")
	switch rapid.IntRange(0, 9).Draw(t, "what") {
	case 0:
		return p.Clear()
	case 1, 2, 3:
		first := rapid.IntRange(0, len(ids)-1).Draw(t, "first")
		return source.Frame{Kind: source.FrameEvents, Data: p.Add(kvevent.Removed, tier, sourcetest.Tokens(ids...), first)}
	}
	return p.Store(tier, sourcetest.Tokens(ids...))
}

// TestAnImageAndWhatFollowsItsCursorAreTheTruth: events that come between the cursor
// of an image and its blocks are told again to who begins with it, which changes
// nothing in the end.
func TestAnImageAndWhatFollowsItsCursorAreTheTruth(outer *testing.T) {
	now := time.Unix(1000, 0)
	rapid.Check(outer, func(t *rapid.T) {
		p := sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0)
		set := freshFeeds(outer)
		set.Frame(p.Announce(), now)
		happen := func(when string) {
			for range rapid.IntRange(0, 6).Draw(t, when) {
				set.Frame(somethingHappens(t, p), now)
			}
		}
		happen("before")
		var image feedImage
		feed, dumps := set.beginImage(11, &image)
		happen("meanwhile")
		feed.model.Index().DumpOwner(p.Meta.Owner, func(e *kvevent.RouterEvent) bool {
			image.store(e)
			return true
		})
		happen("afterwards")
		if !set.confirmImage(feed, dumps) {
			t.Fatal("the image is refused, and nothing was missing")
		}
		var data bytes.Buffer
		w, err := newSnapshotWriter(&data, 0)
		if err == nil {
			err = w.add(&image)
		}
		if err == nil {
			err = w.finish()
		}
		if err != nil {
			t.Fatal(err)
		}
		next := freshFeeds(outer)
		if _, feeds, err := next.restore(&data, now); err != nil || feeds != 1 {
			t.Fatalf("%d feeds, %v", feeds, err)
		}
		next.answer(p, next.Frame(p.Announce(), now), now)
		f := next.feeds[11]
		next.Frame(p.Announce(), now)
		if !f.exact() || f.counters.Divergences != 0 {
			t.Fatalf("it is not exact after the events since %d: %+v", image.cursor, f.counters)
		}
	})
}

// TestImagesOfFeedsThatAreNotCompleteAllTheTimeAreRefused: blocks that came by
// anything else than the events after the cursor do not follow from it.
func TestImagesOfFeedsThatAreNotCompleteAllTheTimeAreRefused(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, meanwhile := range map[string]func(s *Set, p *sourcetest.Publisher){
		"it has a gap": func(s *Set, p *sourcetest.Publisher) {
			p.Store(kv.TierDevice, sourcetest.Tokens(2)) // lost
			s.Frame(p.Store(kv.TierDevice, sourcetest.Tokens(3)), now)
		},
		"its blocks were replaced": func(s *Set, p *sourcetest.Publisher) {
			p.Drift(7)
			s.answer(p, s.Frame(p.Announce(), now), now)
		},
		"it said goodbye": func(s *Set, p *sourcetest.Publisher) { s.Frame(p.Goodbye(), now) },
		"its owner has another publisher": func(s *Set, p *sourcetest.Publisher) {
			s.Frame(sourcetest.NewPublisher(12, p.Meta.Owner, 0).Announce(), now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, set := sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0), freshFeeds(t)
			set.Frame(p.Announce(), now)
			set.Frame(p.Store(kv.TierDevice, sourcetest.Tokens(1)), now)
			var image feedImage
			feed, dumps := set.beginImage(11, &image)
			if feed == nil {
				t.Fatal("no image of a complete feed")
			}
			meanwhile(set, p)
			if set.confirmImage(feed, dumps) {
				t.Errorf("the image at %d was taken", image.cursor)
			}
		})
	}
}

// TestSnapshotsOfManyOwners: a publisher or an owner that is in a snapshot twice
// makes it useless, and leaves nothing behind.
func TestSnapshotsOfManyOwners(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, second := range map[string]kvevent.Announcement{
		"owner":     {PublisherID: 12, Owner: sourcetest.WorkerOwner(1)},
		"publisher": {PublisherID: 11, Owner: sourcetest.WorkerOwner(2)},
	} {
		t.Run(name, func(t *testing.T) {
			var data bytes.Buffer
			w, err := newSnapshotWriter(&data, 0)
			if err != nil {
				t.Fatal(err)
			}
			for i, a := range []kvevent.Announcement{{PublisherID: 11, Owner: sourcetest.WorkerOwner(1)}, second} {
				a.Model, a.BlockSize, a.Health = "m", sourcetest.BlockSize, kvevent.HealthExact
				block := kvevent.StoredBlock{Hash: kv.SequenceHash(i + 1), Local: kv.LocalHash(i + 1)}
				image := feedImage{announcement: a, cursor: 1, events: []kvevent.RouterEvent{{Kind: kvevent.Stored, Blocks: []kvevent.StoredBlock{block}}}}
				if err := w.add(&image); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.finish(); err != nil {
				t.Fatal(err)
			}
			set := freshFeeds(t)
			if _, _, err := set.restore(&data, now); err == nil {
				t.Error("the snapshot was taken")
			}
			if left := fmt.Sprint(onlyFeeds(t, set).Index().Stats().Memberships, len(set.restored), len(set.restoredByOwner)); left != "0 0 0" {
				t.Errorf("left behind: %s", left)
			}
		})
	}
}
