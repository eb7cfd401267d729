package storage

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// arenaKind says whether an arena is host memory or disk.
type arenaKind uint32

const (
	// kindHost is for files mapped as memory.
	kindHost arenaKind = 1
	// kindDisk is for files read and written.
	kindDisk arenaKind = 2
)

// String is "host" or "disk".
func (k arenaKind) String() string {
	if k == kindHost {
		return "host"
	}
	return "disk"
}

const (
	// tableVersion is the version of the header, the sections and the records that
	// this code writes. Disk tables of an older version are migrated. A table of a newer
	// version is renamed.
	tableVersion = 2
	// MaxNamespaces is the size of a table's namespace directory.
	MaxNamespaces = 64

	// A table starts with two header pages, which are written in turn. One of them is
	// whole whenever the agent is killed or the power fails.
	headerCopies   = 2
	headerSize     = PageSize
	tableMagic     = "BYARDTB1"
	directoryStart = 64
	directoryEntry = 24
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrForeign means that slots.table is no slot table, or that of the other kind of
	// arena. The directory was named by mistake, and nothing in it is changed.
	ErrForeign = errors.New("file is not a slot table of this tier")
	// ErrLocked means that another agent has the arena open.
	ErrLocked = errors.New("in use by another agent")
	// ErrNamespaces means that every entry of the table's directory is in use.
	ErrNamespaces = errors.New("the directory of namespaces is full")
	// ErrFull means that the arena's budget is used up.
	ErrFull = errors.New("arena is full")

	// Our own tables that cannot be used as they are: errStale has lost its meaning,
	// errUnreadable is damaged, errNewer and errOlder are of another version.
	errStale      = errors.New("slot table does not fit")
	errUnreadable = errors.New("slot table cannot be read")
	errNewer      = errors.New("slot table is of a newer version")
	errOlder      = errors.New("slot table is of an older version")
)

// directoryItem is one namespace of a table.
type directoryItem struct {
	id        kv.NamespaceID
	slotBytes uint64
}

// header is the content of a header page, little-endian:
//
//	magic[8] "BYARDTB1" @0 | version u32 @8 | kind u32 @12 |
//	extent bytes u64 @16 | records per extent u32 @24 | namespaces u32 @28 |
//	boot id[16] @32 | next extent id u64 @48 | sequence u64 @56 |
//	directory @64: 64 × (namespace id[16] | slot bytes u64) | zero |
//	CRC32C of bytes 0..4091 u32 @4092
type header struct {
	kind        arenaKind
	extentBytes uint64
	// stride is the number of records that each section has room for, used or not. So
	// the offset of a section depends on its number alone.
	stride uint32
	// bootID is the boot during which the table was made. Host memory of another boot
	// is gone, whatever the files look like.
	bootID [16]byte
	// nextExtent is the id of the next extent. It is stored before the id is used: no
	// id is used twice.
	nextExtent uint64
	// sequence counts the writes of the header. Of two good copies the one with the
	// greater sequence counts.
	sequence  uint64
	directory []directoryItem
}

// encode returns the bytes of a header page, with their CRC at the end. The comment of type header
// has the layout.
func (h *header) encode() []byte {
	b := make([]byte, headerSize)
	le := binary.LittleEndian
	copy(b, tableMagic)
	le.PutUint32(b[8:], tableVersion)
	le.PutUint32(b[12:], uint32(h.kind))
	le.PutUint64(b[16:], h.extentBytes)
	le.PutUint32(b[24:], h.stride)
	le.PutUint32(b[28:], uint32(len(h.directory)))
	copy(b[32:], h.bootID[:])
	le.PutUint64(b[48:], h.nextExtent)
	le.PutUint64(b[56:], h.sequence)
	for i, d := range h.directory {
		e := b[directoryStart+i*directoryEntry:]
		copy(e, d.id[:])
		le.PutUint64(e[16:], d.slotBytes)
	}
	le.PutUint32(b[4092:], crc32.Checksum(b[:4092], castagnoli()))
	return b
}

// decodeHeader decodes a header page. For a header of version 1 it returns both the header
// and errOlder. The other errors are errStale (never written), errNewer, errUnreadable, and
// ErrForeign for a file that is not ours to change.
func decodeHeader(b []byte) (header, error) {
	if len(b) >= headerSize && [8]byte(b) == [8]byte{} {
		return header{}, fmt.Errorf("%w: its header was never written", errStale)
	}
	if len(b) < len(tableMagic) || string(b[:len(tableMagic)]) != tableMagic {
		return header{}, fmt.Errorf("%w: no %q at its start", ErrForeign, tableMagic)
	}
	if len(b) < headerSize {
		return header{}, fmt.Errorf("%w: %d bytes of its header", errUnreadable, len(b))
	}
	le := binary.LittleEndian
	version := le.Uint32(b[8:])
	if version > tableVersion {
		return header{}, fmt.Errorf("%w: %d, want %d", errNewer, version, tableVersion)
	}
	if !isWhole(b) {
		return header{}, fmt.Errorf("%w: the CRC of its header is wrong", errUnreadable)
	}
	if version < tableVersion1 {
		return header{}, fmt.Errorf("%w: version %d", errUnreadable, version)
	}
	n := le.Uint32(b[28:])
	if n > MaxNamespaces {
		return header{}, fmt.Errorf("%w: %d namespaces", errUnreadable, n)
	}
	h := header{
		kind:        arenaKind(le.Uint32(b[12:])),
		extentBytes: le.Uint64(b[16:]),
		stride:      le.Uint32(b[24:]),
		bootID:      [16]byte(b[32:48]),
		nextExtent:  le.Uint64(b[48:]),
		sequence:    le.Uint64(b[56:]),
	}
	for i := range n {
		e := b[directoryStart+i*directoryEntry:]
		h.directory = append(h.directory, directoryItem{kv.NamespaceID(e[:16]), le.Uint64(e[16:])})
	}
	if version < tableVersion {
		return h, fmt.Errorf("%w: %d, want %d", errOlder, version, tableVersion)
	}
	return h, nil
}

// decodeHeaders decodes the two copies of the header at the start of a table and returns the newer
// whole one. When there is none, the error is that of the first copy. Tables of an older version
// have one copy, and nothing is known of the second copy in a newer version.
func decodeHeaders(b []byte) (header, error) {
	first, err := decodeHeader(b)
	newer := errors.Is(err, errNewer) && isWhole(b)
	if newer || errors.Is(err, errOlder) || len(b) < headerCopies*headerSize {
		return first, err
	}
	second, err2 := decodeHeader(b[headerSize:])
	if err2 == nil && (err != nil || second.sequence > first.sequence) {
		return second, nil
	}
	return first, err
}

// fits returns why a table with header h cannot serve an arena that wants header w, nil when it
// can. ErrForeign: the table is of the other kind and must stay, because its blocks belong to
// another tier. errStale: the table may be made anew.
func (h *header) fits(w *header) error {
	if h.kind != w.kind {
		return fmt.Errorf("%w: it is a %s table, want %s", ErrForeign, h.kind, w.kind)
	}
	if h.extentBytes != w.extentBytes || h.stride != w.stride {
		return fmt.Errorf("%w: extents of %d bytes and %d records, want %d and %d",
			errStale, h.extentBytes, h.stride, w.extentBytes, w.stride)
	}
	if h.kind == kindHost && (h.bootID != w.bootID || w.bootID == [16]byte{}) {
		return fmt.Errorf("%w: host memory of boot %x, this is boot %x", errStale, h.bootID, w.bootID)
	}
	return nil
}

// readBootID returns the kernel's id of this boot, zero where there is none.
func readBootID() (id [16]byte) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id
	}
	digits := strings.ReplaceAll(strings.TrimSpace(string(text)), "-", "")
	if len(digits) == 2*len(id) {
		// A malformed id stays partly zero.
		_, _ = hex.Decode(id[:], []byte(digits))
	}
	return id
}

// isWhole reports whether a header page has the CRC of its bytes.
func isWhole(page []byte) bool {
	return len(page) >= headerSize && crc32.Checksum(page[:4092], castagnoli()) == binary.LittleEndian.Uint32(page[4092:])
}

// sectionHead is the first page of a section. It is written after the records, and
// names the extent by its id. So the section of an earlier extent is never taken for
// that of a later one.
//
//	magic[8] "BYARDSC1" @0 | extent id u32 @8 | namespace u32 @12 |
//	slots u32 @16 | zero u32 @20 | slot bytes u64 @24 |
//	CRC32C of bytes 0..31 u32 @32 | zero
type sectionHead struct {
	extent    uint32
	namespace uint32
	slots     uint32
	slotBytes uint64
}

const (
	sectionMagic     = "BYARDSC1"
	sectionHeadBytes = 36
)

// bytes returns the size of the extent's slots.
func (h *sectionHead) bytes() uint64 { return uint64(h.slots) * h.slotBytes }

// encode returns the start of the section's first page, with a CRC. The comment of type sectionHead
// has the layout.
func (h *sectionHead) encode() []byte {
	b := make([]byte, sectionHeadBytes)
	le := binary.LittleEndian
	copy(b, sectionMagic)
	le.PutUint32(b[8:], h.extent)
	le.PutUint32(b[12:], h.namespace)
	le.PutUint32(b[16:], h.slots)
	le.PutUint64(b[24:], h.slotBytes)
	le.PutUint32(b[32:], crc32.Checksum(b[:32], castagnoli()))
	return b
}

// decodeSectionHead reads what sectionHead.encode has written. An error says that the bytes are no
// whole section head.
func decodeSectionHead(b []byte) (sectionHead, error) {
	le := binary.LittleEndian
	if len(b) < sectionHeadBytes || string(b[:8]) != sectionMagic || le.Uint32(b[32:]) != crc32.Checksum(b[:32], castagnoli()) {
		return sectionHead{}, errors.New("its section of the slot table is damaged")
	}
	return sectionHead{
		extent: le.Uint32(b[8:]), namespace: le.Uint32(b[12:]), slots: le.Uint32(b[16:]), slotBytes: le.Uint64(b[24:]),
	}, nil
}
