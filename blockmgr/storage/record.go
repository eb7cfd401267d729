package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/zeebo/xxh3"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// State is the state of a slot. The numbers are stored and never change.
type State uint8

const (
	// StateFree means that the slot holds nothing.
	StateFree State = 0
	// StateGranted means that an engine fills the host slot, or the write-behind the
	// disk slot. Its bytes mean nothing yet.
	StateGranted State = 1
	// StateStaging means that the slot is being filled from disk.
	StateStaging State = 2
	// StateReceiving means that the slot is being filled from a peer.
	StateReceiving State = 3
	// StateSealed means that the bytes are complete and the record has their checksum.
	StateSealed State = 4
	// StateEvicting means that the block is being evicted and gets no new users.
	StateEvicting State = 5
	// StateQuarantined means that the slot must not be used. Somebody may still write
	// into it, or its bytes could not be read back.
	StateQuarantined State = 6
	// StateFilled means that the bytes are complete and not yet summed.
	StateFilled State = 7

	// NumStates is the number of states; arrays indexed by State have this length.
	NumStates = 8
)

// String returns the state's name in logs and dumps.
func (s State) String() string {
	names := [NumStates]string{"free", "granted", "staging", "receiving", "sealed", "evicting", "quarantined", "filled"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

const (
	// RecordSize is the size of an encoded Record. Four fill a 512-byte sector, so
	// that a device that writes whole sectors never tears a record.
	RecordSize = 128
	// recordVersion is the version byte of a record without an owner, ownedVersion of one with an owner.
	recordVersion = 2
	ownedVersion  = 3

	// Offsets of fields that a Section reads or writes on their own.
	positionOffset = 48
	seqOffset      = 64
	recencyOffset  = 96
)

// ErrBadRecord means that the bytes are no record: wrong CRC, version, state or
// padding.
var ErrBadRecord = errors.New("slot record is damaged")

// Record is what a slot table says about one slot. AppendRecord has its bytes.
type Record struct {
	Key    kv.StoredKey
	Parent kv.BlockKey
	// Namespace is an index into the directory of the table's header.
	Namespace uint32
	Seed      uint64
	Position  uint32
	// Length is the block's number of bytes. The rest of the slot is padding.
	Length    uint32
	Local     kv.LocalHash
	Seq       kv.SequenceHash
	ParentSeq kv.SequenceHash
	// Checksum is Bind of the block's content sum; meaningful when sealed.
	Checksum uint64
	// Generation counts the slot's lives: one more each time it is freed.
	Generation uint64
	// Recency is the pool's coarse clock when the record was written.
	Recency uint32
	State   State
	// Session is the session that the slot was granted to.
	Session uint64
	// Priority is the block's priority in eviction and offload, which package storage
	// does not interpret.
	Priority uint32
	// Owner names the tenant of the block, or of the bytes that a block has left in the slot; 0 is none.
	Owner uint64
}

// AppendRecord appends r's 128 bytes to b, little-endian:
//
//	key[16] @0 | group u32 @16 | parent[16] @20 | namespace u32 @36 |
//	seed u64 @40 | position u32 @48 | length u32 @52 | local u64 @56 |
//	seq u64 @64 | parent seq u64 @72 | checksum u64 @80 | generation u64 @88 |
//	recency u32 @96 | state u8 @100 | version u8 @101 | zero u16 @102 |
//	session u64 @104 | priority u32 @112 | owner u64 @116 |
//	CRC32C of bytes 0..95 and 100..123 u32 @124
//
// The version is 2 when the owner is 0, and else 3: an agent that does not know owners, and would serve
// the block for longer than its tenant allows, finds the record damaged.
//
// The CRC leaves out the recency, which is a hint: see Section.SetRecency.
// The encoding is frozen in testdata/records.txt.
func AppendRecord(b []byte, r *Record) []byte {
	n := len(b)
	le := binary.LittleEndian
	key := r.Key.Block()
	b = append(b, key[:]...)
	b = le.AppendUint32(b, r.Key.Group())
	b = append(b, r.Parent[:]...)
	b = le.AppendUint32(b, r.Namespace)
	b = le.AppendUint64(b, r.Seed)
	b = le.AppendUint32(b, r.Position)
	b = le.AppendUint32(b, r.Length)
	b = le.AppendUint64(b, uint64(r.Local))
	b = le.AppendUint64(b, uint64(r.Seq))
	b = le.AppendUint64(b, uint64(r.ParentSeq))
	b = le.AppendUint64(b, r.Checksum)
	b = le.AppendUint64(b, r.Generation)
	b = le.AppendUint32(b, r.Recency)
	version := byte(recordVersion)
	if r.Owner != 0 {
		version = ownedVersion
	}
	b = append(b, byte(r.State), version, 0, 0)
	b = le.AppendUint64(b, r.Session)
	b = le.AppendUint32(b, r.Priority)
	b = le.AppendUint64(b, r.Owner)
	return le.AppendUint32(b, recordCRC(b[n:]))
}

// DecodeRecord reads what AppendRecord writes. Anything else is ErrBadRecord.
func DecodeRecord(b []byte) (Record, error) {
	if len(b) < RecordSize {
		return Record{}, fmt.Errorf("%w: %d bytes, want %d", ErrBadRecord, len(b), RecordSize)
	}
	b = b[:RecordSize]
	le := binary.LittleEndian
	if got, want := recordCRC(b), le.Uint32(b[124:]); got != want {
		return Record{}, fmt.Errorf("%w: CRC %08x, computed %08x", ErrBadRecord, want, got)
	}
	owner := le.Uint64(b[116:])
	if owned := b[101] == ownedVersion; !owned && b[101] != recordVersion || owned != (owner != 0) || b[100] >= NumStates {
		return Record{}, fmt.Errorf("%w: version %d, state %d", ErrBadRecord, b[101], b[100])
	}
	if le.Uint16(b[102:]) != 0 {
		return Record{}, fmt.Errorf("%w: reserved bytes are set", ErrBadRecord)
	}
	return Record{
		Key:        kv.BlockKey(b[:16]).InGroup(le.Uint32(b[16:])),
		Parent:     kv.BlockKey(b[20:36]),
		Namespace:  le.Uint32(b[36:]),
		Seed:       le.Uint64(b[40:]),
		Position:   le.Uint32(b[48:]),
		Length:     le.Uint32(b[52:]),
		Local:      kv.LocalHash(le.Uint64(b[56:])),
		Seq:        kv.SequenceHash(le.Uint64(b[64:])),
		ParentSeq:  kv.SequenceHash(le.Uint64(b[72:])),
		Checksum:   le.Uint64(b[80:]),
		Generation: le.Uint64(b[88:]),
		Recency:    le.Uint32(b[96:]),
		State:      State(b[100]),
		Session:    le.Uint64(b[104:]),
		Priority:   le.Uint32(b[112:]),
		Owner:      owner,
	}, nil
}

// recordCRC returns the CRC that belongs at the end of an encoded record.
func recordCRC(b []byte) uint32 {
	table := castagnoli()
	return crc32.Update(crc32.Checksum(b[:recencyOffset], table), table, b[recencyOffset+4:124])
}

// castagnoli returns the CRC32C table; the standard library builds it once.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// Bind returns the checksum of a record: extent.ContentSum tied to one life of one
// slot. The record of an earlier generation never vouches for the bytes of a later
// one. Bind is its own inverse: Bind(Bind(s, k, g), k, g) == s. So a sum moves to
// another slot without being computed again from a copy that may already be bad.
func Bind(sum uint64, key kv.StoredKey, generation uint64) uint64 {
	var g [8]byte
	binary.LittleEndian.PutUint64(g[:], generation)
	return sum ^ xxh3.HashSeed(g[:], xxh3.Hash(key[:]))
}
