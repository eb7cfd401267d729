package feed

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// A snapshot has the feeds of a router. It is little-endian:
//
//	"BYRS", version u16, 0 u16, position u64, CRC-32C u32 of these
//	for each feed: 1 u8, length u32, announcement, cursor u64,
//	    for each run of blocks: blocks u16 (not 0), tier and flags u8,
//	        group u8 if it is not the primary one,
//	        parent u64 if there is one,
//	        for each block: local u64, and hash u64 where it is not the chain's;
//	            in a group hash u64 alone
//	    0 u16, CRC-32C u32 of all this
//	0 u8, feeds u64, CRC-32C u32 of these
//
// Position is the stream position of the last message that all feeds have applied. A feed
// may be ahead of the position, and its blocks ahead of its cursor. Applying the events after
// the cursor again gives the same blocks. A reader that does not know groups refuses a snapshot with
// any. Version 1 had hashes without parents and cannot be
// restored: it counts as no snapshot.
const (
	snapshotMagic   = "BYRS"
	snapshotVersion = 2
	// maxAnnouncement bounds an announcement in a snapshot.
	maxAnnouncement = 64 << 10

	tagEnd  = 0
	tagFeed = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errOldSnapshot marks a snapshot of an earlier version.
var errOldSnapshot = fmt.Errorf("%w", source.ErrNoSnapshot)

// feedImage is one feed of a snapshot.
type feedImage struct {
	announcement kvevent.Announcement
	cursor       uint64
	// events are stored events of the owner's blocks, parents before children in each tier.
	events []kvevent.RouterEvent
	blocks []kvevent.StoredBlock // the memory behind the events
}

// reset empties the image and keeps its memory.
func (f *feedImage) reset() { *f = feedImage{events: f.events[:0], blocks: f.blocks[:0]} }

// store adds a copy of a stored event.
func (f *feedImage) store(e *kvevent.RouterEvent) {
	start := len(f.blocks)
	f.blocks = append(f.blocks, e.Blocks...)
	copied := *e
	copied.Blocks = f.blocks[start:len(f.blocks):len(f.blocks)]
	f.events = append(f.events, copied)
}

// snapshotWriter writes a snapshot.
type snapshotWriter struct {
	w     io.Writer
	buf   []byte
	feeds uint64
}

// newSnapshotWriter begins a snapshot: it writes the head to w. position is the stream position of
// the last applied message.
func newSnapshotWriter(w io.Writer, position uint64) (*snapshotWriter, error) {
	s := &snapshotWriter{w: w}
	s.buf = append(s.buf, snapshotMagic...)
	s.buf = binary.LittleEndian.AppendUint16(s.buf, snapshotVersion)
	s.buf = binary.LittleEndian.AppendUint16(s.buf, 0)
	s.buf = binary.LittleEndian.AppendUint64(s.buf, position)
	s.buf = binary.LittleEndian.AppendUint32(s.buf, crc32.Checksum(s.buf, castagnoli))
	_, err := w.Write(s.buf)
	return s, err
}

// add writes one feed to the snapshot: announcement, cursor, the runs of its blocks, and a checksum.
// A run is up to maxRun blocks of one tier, each the parent of the next.
func (s *snapshotWriter) add(f *feedImage) error {
	announcement := kvevent.AppendAnnouncement(nil, &f.announcement)
	if len(announcement) > maxAnnouncement {
		return fmt.Errorf("announcement of %s: %d bytes, want at most %d", f.announcement.Owner, len(announcement), maxAnnouncement)
	}
	s.buf = append(s.buf[:0], tagFeed)
	s.buf = binary.LittleEndian.AppendUint32(s.buf, uint32(len(announcement)))
	s.buf = append(s.buf, announcement...)
	s.buf = binary.LittleEndian.AppendUint64(s.buf, f.cursor)
	sum := uint32(0)
	for i := range f.events {
		e := f.events[i]
		for blocks := range slices.Chunk(f.events[i].Blocks, maxRun) {
			e.Blocks = blocks
			s.buf = appendRun(s.buf, &e)
			e.Parent, e.HasParent = blocks[len(blocks)-1].Hash, e.Group == 0
		}
		if len(s.buf) >= maxAnnouncement { // bounds the buffer for a large feed
			sum = crc32.Update(sum, castagnoli, s.buf)
			if _, err := s.w.Write(s.buf); err != nil {
				return err
			}
			s.buf = s.buf[:0]
		}
	}
	s.buf = binary.LittleEndian.AppendUint16(s.buf, 0) // no further run
	sum = crc32.Update(sum, castagnoli, s.buf)
	s.buf = binary.LittleEndian.AppendUint32(s.buf, sum)
	s.feeds++
	_, err := s.w.Write(s.buf)
	return err
}

// finish writes the end of the snapshot.
func (s *snapshotWriter) finish() error {
	s.buf = append(s.buf[:0], tagEnd)
	s.buf = binary.LittleEndian.AppendUint64(s.buf, s.feeds)
	s.buf = binary.LittleEndian.AppendUint32(s.buf, crc32.Checksum(s.buf, castagnoli))
	_, err := s.w.Write(s.buf)
	return err
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
