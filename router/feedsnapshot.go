package router

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// A snapshot is what a router knew of its feeds, little-endian:
//
//	"BYRS", version u16, 0 u16, position u64, CRC-32C u32 of these
//	for each feed: 1 u8, length u32, announcement, cursor u64, blocks u64,
//	    for each block: hash u64, tiers u8
//	    CRC-32C u32 of all this
//	0 u8, feeds u64, CRC-32C u32 of these
//
// Position is that of the last message which the feeds had taken in, in the
// stream that they read; a feed may be ahead of it.
const (
	snapshotMagic   = "BYRS"
	snapshotVersion = 1
	// maxAnnouncement bounds an announcement in a snapshot.
	maxAnnouncement = 64 << 10
	blockBytes      = 9

	tagEnd  = 0
	tagFeed = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// feedImage is a feed in a snapshot.
type feedImage struct {
	announcement kvevent.Announcement
	cursor       uint64
	blocks       []index.OwnedBlock
}

// snapshotWriter writes a snapshot.
type snapshotWriter struct {
	w     io.Writer
	buf   []byte
	feeds uint64
}

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

// add writes one feed, block by block through one buffer.
func (s *snapshotWriter) add(f *feedImage) error {
	announcement := kvevent.AppendAnnouncement(nil, &f.announcement)
	if len(announcement) > maxAnnouncement {
		return fmt.Errorf("announcement of %s: %d bytes, want at most %d", f.announcement.Owner, len(announcement), maxAnnouncement)
	}
	s.buf = append(s.buf[:0], tagFeed)
	s.buf = binary.LittleEndian.AppendUint32(s.buf, uint32(len(announcement)))
	s.buf = append(s.buf, announcement...)
	s.buf = binary.LittleEndian.AppendUint64(s.buf, f.cursor)
	s.buf = binary.LittleEndian.AppendUint64(s.buf, uint64(len(f.blocks)))
	sum := uint32(0)
	for _, b := range f.blocks {
		s.buf = binary.LittleEndian.AppendUint64(s.buf, uint64(b.Hash))
		s.buf = append(s.buf, byte(b.Tiers))
		if len(s.buf) >= maxAnnouncement {
			sum = crc32.Update(sum, castagnoli, s.buf)
			if _, err := s.w.Write(s.buf); err != nil {
				return err
			}
			s.buf = s.buf[:0]
		}
	}
	sum = crc32.Update(sum, castagnoli, s.buf)
	s.buf = binary.LittleEndian.AppendUint32(s.buf, sum)
	s.feeds++
	_, err := s.w.Write(s.buf)
	return err
}

// finish writes the end.
func (s *snapshotWriter) finish() error {
	s.buf = append(s.buf[:0], tagEnd)
	s.buf = binary.LittleEndian.AppendUint64(s.buf, s.feeds)
	s.buf = binary.LittleEndian.AppendUint32(s.buf, crc32.Checksum(s.buf, castagnoli))
	_, err := s.w.Write(s.buf)
	return err
}

// snapshotReader reads a snapshot. It trusts nothing in it, and takes no more
// memory than what it has read needs.
type snapshotReader struct {
	r        *bufio.Reader
	sum      uint32
	feeds    uint64
	position uint64
	scratch  [16]byte
}

func newSnapshotReader(r io.Reader) (*snapshotReader, error) {
	s := &snapshotReader{r: bufio.NewReaderSize(r, maxAnnouncement)}
	head, err := s.take(16)
	if err != nil {
		return nil, fmt.Errorf("snapshot head: %w", err)
	}
	if magic := string(head[:4]); magic != snapshotMagic {
		return nil, fmt.Errorf("snapshot begins with %q, want %q", magic, snapshotMagic)
	}
	if v := binary.LittleEndian.Uint16(head[4:]); v != snapshotVersion {
		return nil, fmt.Errorf("snapshot version %d, want %d", v, snapshotVersion)
	}
	s.position = binary.LittleEndian.Uint64(head[8:])
	if err := s.checkSum(); err != nil {
		return nil, fmt.Errorf("snapshot head: %w", err)
	}
	return s, nil
}

// take reads n bytes, at most 16, which are lent until the next call.
func (s *snapshotReader) take(n int) ([]byte, error) {
	b := s.scratch[:n]
	if _, err := io.ReadFull(s.r, b); err != nil {
		return nil, cut(err)
	}
	s.sum = crc32.Update(s.sum, castagnoli, b)
	return b, nil
}

// cut makes an end in the middle of something an error of its own.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// next reads a feed; io.EOF after the last one.
func (s *snapshotReader) next() (*feedImage, error) {
	s.sum = 0
	tag, err := s.take(1)
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

func (s *snapshotReader) end() error {
	b, err := s.take(8)
	if err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint64(b); n != s.feeds {
		return fmt.Errorf("it ends after %d feeds, want %d", s.feeds, n)
	}
	return nil
}

func (s *snapshotReader) checkSum() error {
	sum := s.sum
	b, err := s.take(4)
	if err != nil {
		return err
	}
	if want := binary.LittleEndian.Uint32(b); sum != want {
		return fmt.Errorf("CRC %08x, want %08x", sum, want)
	}
	return nil
}

func (s *snapshotReader) feed() (*feedImage, error) {
	b, err := s.take(4)
	if err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(b)
	if n > maxAnnouncement {
		return nil, fmt.Errorf("announcement of %d bytes, want at most %d", n, maxAnnouncement)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(s.r, text); err != nil {
		return nil, cut(err)
	}
	s.sum = crc32.Update(s.sum, castagnoli, text)
	f := new(feedImage)
	if f.announcement, err = kvevent.DecodeAnnouncement(text); err != nil {
		return nil, err
	}
	if b, err = s.take(16); err != nil {
		return nil, err
	}
	f.cursor = binary.LittleEndian.Uint64(b)
	for left := binary.LittleEndian.Uint64(b[8:]); left > 0; left-- {
		if b, err = s.take(blockBytes); err != nil {
			return nil, err
		}
		f.blocks = append(f.blocks, index.OwnedBlock{
			Hash: kv.SequenceHash(binary.LittleEndian.Uint64(b)), Tiers: kv.TierMask(b[8])})
	}
	return f, nil
}

// events is what the feed held, one stored event for each tier.
func (f *feedImage) events() []kvevent.RouterEvent {
	var out []kvevent.RouterEvent
	for _, t := range kv.Tiers {
		e := kvevent.RouterEvent{Owner: f.announcement.Owner, Tier: t, ID: uint64(len(out)) + 1, Kind: kvevent.Stored}
		for _, b := range f.blocks {
			if b.Tiers.Has(t) {
				e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: b.Hash})
			}
		}
		if len(e.Blocks) > 0 {
			out = append(out, e)
		}
	}
	return out
}
