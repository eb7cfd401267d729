package feed

import (
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// The feeds of a snapshot stay apart, as restored feeds, until their publishers announce
// themselves. Their blocks are in the index and their events are applied, but their workers
// get no requests. The first announcement of the publisher adopts the feed. The feed then
// queries only for the events that it missed. A feed whose publisher stays silent is
// forgotten.

// restoreFeed adds a feed of a snapshot and its blocks, to wait for an announcement of its
// publisher. It returns false when the publisher or its owner is followed already, or when there is
// no room.
func (s *Set) restoreFeed(f *feedImage, now time.Time) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &f.announcement
	if s.feeds[a.PublisherID] != nil || s.byOwner[a.Owner] != nil || len(s.restored) >= s.maxFeeds || !utf8.ValidString(a.Model) {
		return false, nil // an earlier version accepted model names that are not UTF-8
	}
	if s.restoredByOwner[a.Owner] != nil || s.restored[a.PublisherID] != nil {
		return false, fmt.Errorf("%s or its publisher %s is listed twice", a.Owner, source.PublisherName(a.PublisherID))
	}
	m, err := s.openModel(a)
	if errors.Is(err, ErrTooManyModels) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := m.Index().Replace(a.Owner, f.events); err != nil {
		return false, err
	}
	feed := newFeed(a, m)
	feed.cursor, feed.announcedAt, feed.source = f.cursor, now, s.snapshotSource
	s.restored[a.PublisherID], s.restoredByOwner[a.Owner] = feed, feed
	return true, nil
}

// restore adds the feeds of the snapshot in r, or none after an error. It returns the stream
// position of the snapshot, from which to read on, and the number of feeds.
func (s *Set) restore(r io.Reader, now time.Time) (position uint64, feeds int, err error) {
	snapshot, err := newSnapshotReader(r)
	for err == nil {
		var f *feedImage
		if f, err = snapshot.next(); err != nil {
			break
		}
		var added bool
		if added, err = s.restoreFeed(f, now); added {
			feeds++
		}
	}
	if !errors.Is(err, io.EOF) {
		s.forgetRestored()
		return 0, 0, err
	}
	return snapshot.position, feeds, nil
}

// resumeRestoredLocked makes the restored feed of a publisher that announced itself an ordinary feed,
// and returns it. A feed of another owner or model is dropped. Without a restored feed the result
// is nil.
func (s *Set) resumeRestoredLocked(a *kvevent.Announcement) *feed {
	f := s.restored[a.PublisherID]
	if f == nil {
		return nil
	}
	if f.owner() != a.Owner || f.model.key != keyOf(a) {
		s.forgetRestoredLocked(f)
		return nil
	}
	delete(s.restored, a.PublisherID)
	delete(s.restoredByOwner, a.Owner)
	s.feeds[a.PublisherID], s.byOwner[a.Owner] = f, f
	f.announcedAt = time.Time{} // the caller handles a as the first announcement of the feed
	s.counters.Resumed++
	s.log.Info("owner of the snapshot is back", zap.Stringer("owner", f.owner()),
		zap.String("publisher", source.PublisherName(a.PublisherID)), zap.Uint64("cursor", f.cursor), zap.Uint64("events", a.LastEventID))
	return f
}

// forgetRestoredLocked drops a restored feed and its blocks. f may be nil.
func (s *Set) forgetRestoredLocked(f *feed) {
	if f == nil {
		return
	}
	delete(s.restored, f.announcement.PublisherID)
	delete(s.restoredByOwner, f.owner())
	s.dropLocked(f)
}

// save writes a snapshot of the complete feeds: those whose blocks are all in the index. It reads
// the stream position first, so that every feed is at the position or ahead. Events go on
// meanwhile.
func (s *Set) save(w io.Writer) error {
	s.mu.Lock()
	position := s.streamPosition
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

// imageOf fills f with a feed, for a snapshot. It returns false when the feed is not complete.
// Events go on while imageOf dumps a large owner, so the blocks may be newer than the image's
// cursor. The last event of a block decides, so applying the events after the cursor again is
// harmless.
func (s *Set) imageOf(publisher uint64, f *feedImage) bool {
	feed, dumps := s.beginImage(publisher, f)
	if feed == nil {
		return false
	}
	feed.model.Index().DumpOwner(f.announcement.Owner, func(e *kvevent.RouterEvent) bool {
		f.store(e)
		return true
	})
	return s.confirmImage(feed, dumps)
}

// beginImage starts the image of a publisher's feed in a snapshot with the announcement and the
// cursor. It returns the feed and the feed's number of dumps, for confirmImage. The feed is nil when
// the index lacks blocks of it.
func (s *Set) beginImage(publisher uint64, f *feedImage) (feed *feed, dumps uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	feed = s.feeds[publisher]
	if feed == nil || !feed.complete() {
		return nil, 0
	}
	f.reset()
	f.announcement, f.cursor = feed.announcement, feed.cursor
	return feed, feed.counters.Dumps
}

// confirmImage reports whether the feed has stayed complete and no dump changed its blocks
// since beginImage.
func (s *Set) confirmImage(feed *feed, dumps uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	feed.updateLost()
	s.recountLocked(feed)
	return s.feeds[feed.announcement.PublisherID] == feed && feed.complete() && feed.counters.Dumps == dumps
}

// forgetRestored drops every restored feed.
func (s *Set) forgetRestored() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.restored {
		s.forgetRestoredLocked(f)
	}
}
