package feed

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
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

// forgetRestored drops every restored feed.
func (s *Set) forgetRestored() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.restored {
		s.forgetRestoredLocked(f)
	}
}

// snapshotReader reads a snapshot. It checks every length, and allocates only for bytes that
// it has read.
type snapshotReader struct {
	r        *bufio.Reader
	sum      uint32
	feeds    uint64
	position uint64
	scratch  [16]byte
}

// newSnapshotReader reads and checks the head of a snapshot. The error is errOldSnapshot for a
// snapshot of an earlier version.
func newSnapshotReader(r io.Reader) (*snapshotReader, error) {
	s := &snapshotReader{r: bufio.NewReaderSize(r, maxAnnouncement)}
	head, err := s.read(16)
	if err != nil {
		return nil, fmt.Errorf("snapshot head: %w", err)
	}
	if magic := string(head[:4]); magic != snapshotMagic {
		return nil, fmt.Errorf("snapshot begins with %q, want %q", magic, snapshotMagic)
	}
	switch v := binary.LittleEndian.Uint16(head[4:]); {
	case v < snapshotVersion:
		return nil, fmt.Errorf("%w of version %d, stored is version %d", errOldSnapshot, snapshotVersion, v)
	case v > snapshotVersion:
		return nil, fmt.Errorf("snapshot version %d, want %d", v, snapshotVersion)
	}
	s.position = binary.LittleEndian.Uint64(head[8:])
	if err := s.checkSum(); err != nil {
		return nil, fmt.Errorf("snapshot head: %w", err)
	}
	return s, nil
}

// read reads n bytes, at most 16, valid until the next call. It adds them to the checksum.
func (s *snapshotReader) read(n int) ([]byte, error) {
	b := s.scratch[:n]
	if _, err := io.ReadFull(s.r, b); err != nil {
		return nil, unexpectedEOF(err)
	}
	s.sum = crc32.Update(s.sum, castagnoli, b)
	return b, nil
}

// unexpectedEOF turns io.EOF, inside a record, into io.ErrUnexpectedEOF.
func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// next reads a feed. It returns io.EOF after the last one.
func (s *snapshotReader) next() (*feedImage, error) {
	s.sum = 0
	tag, err := s.read(1)
	if err != nil {
		return nil, fmt.Errorf("snapshot after %d feeds: %w", s.feeds, err)
	}
	var f *feedImage
	switch tag[0] {
	case tagEnd:
		err = s.end()
	case tagFeed:
		f, err = s.feed()
	default:
		err = fmt.Errorf("tag %d is neither %d nor %d", tag[0], tagFeed, tagEnd)
	}
	if err == nil {
		err = s.checkSum()
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot after %d feeds: %w", s.feeds, err)
	}
	if f == nil {
		return nil, io.EOF
	}
	s.feeds++
	return f, nil
}

// end reads the number of feeds at the end of a snapshot, and compares it with the feeds read.
func (s *snapshotReader) end() error {
	b, err := s.read(8)
	if err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint64(b); n != s.feeds {
		return fmt.Errorf("snapshot ends after %d feeds, want %d", s.feeds, n)
	}
	return nil
}

// checkSum reads a CRC and compares it with the bytes read since the last one.
func (s *snapshotReader) checkSum() error {
	sum := s.sum
	b, err := s.read(4)
	if err != nil {
		return err
	}
	if want := binary.LittleEndian.Uint32(b); sum != want {
		return fmt.Errorf("CRC %08x, want %08x", sum, want)
	}
	return nil
}

// feed reads one feed, behind its tag: announcement, cursor and the runs of its blocks.
func (s *snapshotReader) feed() (*feedImage, error) {
	b, err := s.read(4)
	if err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(b)
	if n > maxAnnouncement {
		return nil, fmt.Errorf("announcement of %d bytes, want at most %d", n, maxAnnouncement)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(s.r, text); err != nil {
		return nil, unexpectedEOF(err)
	}
	s.sum = crc32.Update(s.sum, castagnoli, text)
	f := new(feedImage)
	if f.announcement, err = kvevent.DecodeAnnouncement(text); err != nil {
		return nil, err
	}
	if b, err = s.read(8); err != nil {
		return nil, err
	}
	f.cursor = binary.LittleEndian.Uint64(b)
	for {
		more, err := s.run(f)
		if err != nil || !more {
			return f, err
		}
	}
}

// run reads a run, blocks of one tier each of which is the parent of the next, and adds it to f as a
// stored event. It returns false at the end of the feed.
func (s *snapshotReader) run(f *feedImage) (more bool, err error) {
	b, err := s.read(2)
	if err != nil {
		return false, err
	}
	n := int(binary.LittleEndian.Uint16(b))
	if n == 0 {
		return false, nil
	}
	if b, err = s.read(1); err != nil {
		return false, err
	}
	flags := b[0]
	e := kvevent.RouterEvent{
		Owner: f.announcement.Owner, ID: uint64(len(f.events)) + 1, Kind: kvevent.Stored,
		Tier: kv.Tier(flags & runTier), HasParent: flags&runParent != 0,
	}
	inGroup := flags&runGroup != 0
	if n > maxRun || e.Tier >= kv.NumTiers || flags&^(runTier|runParent|runHashes|runGroup) != 0 || inGroup && flags&^runTier != runGroup {
		return false, fmt.Errorf("run of %d blocks with flags %#x, want at most %d in a tier below %d", n, flags, maxRun, kv.NumTiers)
	}
	if inGroup {
		return true, s.groupRun(f, &e, n)
	}
	if e.HasParent {
		if b, err = s.read(8); err != nil {
			return false, err
		}
		e.Parent = kv.SequenceHash(binary.LittleEndian.Uint64(b))
	}
	if err := s.blocks(&e, n, flags&runHashes != 0); err != nil {
		return false, err
	}
	f.events = append(f.events, e)
	return true, nil
}

// groupRun reads the group and the n blocks of a run of another group than the primary one, and adds
// the run to f as the stored event e.
func (s *snapshotReader) groupRun(f *feedImage, e *kvevent.RouterEvent, n int) error {
	b, err := s.read(1)
	if err != nil {
		return err
	}
	if e.Group = uint32(b[0]); e.Group == 0 {
		return errors.New("run of group 0 in the form of other groups")
	}
	for range n {
		if b, err = s.read(8); err != nil {
			return err
		}
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: kv.SequenceHash(binary.LittleEndian.Uint64(b))})
	}
	f.events = append(f.events, *e)
	return nil
}

// blocks reads the n blocks of a run into e. hasHashes says that the snapshot has their hashes;
// otherwise they follow from the parent and the LocalHashes.
func (s *snapshotReader) blocks(e *kvevent.RouterEvent, n int, hasHashes bool) error {
	parent, hasParent := e.Parent, e.HasParent
	for range n {
		b, err := s.read(8)
		if err != nil {
			return err
		}
		local := kv.LocalHash(binary.LittleEndian.Uint64(b))
		hash := chain(parent, hasParent, local)
		if hasHashes {
			if b, err = s.read(8); err != nil {
				return err
			}
			hash = kv.SequenceHash(binary.LittleEndian.Uint64(b))
		}
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: hash, Local: local})
		parent, hasParent = hash, true
	}
	return nil
}
