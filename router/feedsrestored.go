package router

import (
	"errors"
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Feeds that came from a snapshot lie apart until their publishers are heard of:
// their blocks are in the index and their events are applied, but nobody is sent
// to their owners. The first announcement of a publisher makes its feed one like
// any other, which then asks for what it missed, or finds that it missed nothing.
// Who is not heard of in time is forgotten.

// restoreOne takes in a feed of a snapshot, and reports whether there was a place
// for it.
func (s *feedSet) restoreOne(f *feedImage, now time.Time) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &f.announcement
	if s.feeds[a.PublisherID] != nil || s.byOwner[a.Owner] != nil || len(s.restored) >= s.limit {
		return false, nil
	}
	if s.restoredOfLocked(a.Owner) != nil {
		return false, fmt.Errorf("%s is in it twice", a.Owner)
	}
	if err := s.index.Replace(a.Owner, f.events); err != nil {
		return false, err
	}
	s.restored[a.PublisherID] = &feedState{announcement: *a, blocks: s.index, cursor: f.cursor, seen: now, source: s.stored}
	return true, nil
}

func (s *feedSet) restoredOfLocked(o kv.Owner) *feedState {
	for _, f := range s.restored {
		if f.owner() == o {
			return f
		}
	}
	return nil
}

// restore takes in a snapshot, all of it or, after an error, nothing. The result
// is its position and how many feeds were taken in.
func (s *feedSet) restore(r io.Reader, now time.Time) (position uint64, feeds int, err error) {
	snapshot, err := newSnapshotReader(r)
	for err == nil {
		var f *feedImage
		if f, err = snapshot.next(); err != nil {
			break
		}
		var taken bool
		if taken, err = s.restoreOne(f, now); taken {
			feeds++
		}
	}
	if !errors.Is(err, io.EOF) {
		s.forgetRestored()
		return 0, 0, err
	}
	return snapshot.position, feeds, nil
}

// adoptLocked makes a restored feed whose publisher is heard of one like any
// other; nil when there is none.
func (s *feedSet) adoptLocked(a *kvevent.Announcement) *feedState {
	f := s.restored[a.PublisherID]
	if f == nil {
		return nil
	}
	if f.owner() != a.Owner {
		s.forgetRestoredLocked(func(other *feedState) bool { return other == f })
		return nil
	}
	delete(s.restored, a.PublisherID)
	s.feeds[a.PublisherID], s.byOwner[a.Owner] = f, f
	f.seen = time.Time{}
	s.counters.Resumed++
	s.log.Info("owner is back from the snapshot", zap.Stringer("owner", f.owner()),
		zap.String("publisher", publisherName(a.PublisherID)), zap.Uint64("cursor", f.cursor), zap.Uint64("events", a.LastEventID))
	return f
}

// forgetRestoredLocked drops restored feeds with their blocks.
func (s *feedSet) forgetRestoredLocked(which func(*feedState) bool) {
	for id, f := range s.restored {
		if !which(f) {
			continue
		}
		delete(s.restored, id)
		s.counters.add(&f.counters)
		f.recovery = recovery{queries: f.queries}
		s.index.RemoveOwner(f.owner())
	}
}

// save writes a snapshot. Each feed is seen at one moment, under the lock, and
// written outside of it; feeds with something missing are left out. The position
// is that of before, so that every feed is at it or ahead.
func (s *feedSet) save(w io.Writer) error {
	s.mu.Lock()
	position := s.position
	publishers := make([]uint64, 0, len(s.feeds))
	for id := range s.feeds {
		publishers = append(publishers, id)
	}
	s.mu.Unlock()
	out, err := newSnapshotWriter(w, position)
	if err != nil {
		return err
	}
	var image feedImage
	for _, id := range publishers {
		if !s.imageOf(id, &image) {
			continue
		}
		if err := out.add(&image); err != nil {
			return err
		}
	}
	return out.finish()
}

// imageOf takes a feed's image; false when there is none to take.
func (s *feedSet) imageOf(publisher uint64, f *feedImage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	feed := s.feeds[publisher]
	if feed == nil || !feed.synced || feed.recovering || feed.diverged {
		return false
	}
	f.reset()
	f.announcement, f.cursor = feed.announcement, feed.cursor
	s.index.DumpOwner(feed.owner(), func(e *kvevent.RouterEvent) bool {
		f.store(e)
		return true
	})
	return true
}

// forgetRestored drops every restored feed.
func (s *feedSet) forgetRestored() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetRestoredLocked(func(*feedState) bool { return true })
}
