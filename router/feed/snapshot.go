package feed

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
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

// maxRun bounds the blocks of a run in a snapshot.
const maxRun = kvevent.MaxBlocksPerMessage

// Flags in the third byte of a run. The low bits are the tier.
const (
	runTier   = 0x0f
	runParent = 0x10
	runHashes = 0x20
	runGroup  = 0x40
)

// appendRun appends a stored event of at most maxRun blocks in the format of a snapshot. It leaves
// out hashes that follow from the parent and the LocalHashes.
func appendRun(dst []byte, e *kvevent.RouterEvent) []byte {
	flags := byte(e.Tier)
	if e.Group != 0 {
		dst = binary.LittleEndian.AppendUint16(dst, uint16(len(e.Blocks)))
		dst = append(dst, flags|runGroup, byte(e.Group))
		for _, b := range e.Blocks {
			dst = binary.LittleEndian.AppendUint64(dst, uint64(b.Hash))
		}
		return dst
	}
	if e.HasParent {
		flags |= runParent
	}
	if !isChain(e) {
		flags |= runHashes
	}
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(e.Blocks)))
	dst = append(dst, flags)
	if e.HasParent {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(e.Parent))
	}
	for _, b := range e.Blocks {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(b.Local))
		if flags&runHashes != 0 {
			dst = binary.LittleEndian.AppendUint64(dst, uint64(b.Hash))
		}
	}
	return dst
}

// isChain reports whether the hashes of e follow from its parent and the LocalHashes, so that a
// snapshot need not have them.
func isChain(e *kvevent.RouterEvent) bool {
	parent, hasParent := e.Parent, e.HasParent
	for _, b := range e.Blocks {
		if b.Hash != chain(parent, hasParent, b.Local) {
			return false
		}
		parent, hasParent = b.Hash, true
	}
	return true
}

// chain returns the hash of a block with a parent, or of a first block.
func chain(parent kv.SequenceHash, hasParent bool, local kv.LocalHash) kv.SequenceHash {
	if hasParent {
		return kv.Chain(parent, local)
	}
	return kv.SequenceHash(local)
}
