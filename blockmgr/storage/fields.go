package storage

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Offsets of fields that are read or written on their own; see AppendRecord.
const (
	positionOffset = 48
	seqOffset      = 64
	recencyOffset  = 96
)

// Position is the position in the record of slot i, which must be a good one.
func (s *Section) Position(i uint32) uint32 {
	return binary.LittleEndian.Uint32(s.bytes(i)[positionOffset:])
}

// Seq is the SequenceHash in the record of slot i, which must be a good one.
func (s *Section) Seq(i uint32) kv.SequenceHash {
	return kv.SequenceHash(binary.LittleEndian.Uint64(s.bytes(i)[seqOffset:]))
}

// SetRecency changes the recency of slot i and nothing else. In a host table it
// has a place of its own. On disk it is in the record, which stays whole: its CRC
// leaves the recency out, which is a hint. There it is written with the next
// change of its page, or after DirtyAged.
func (s *Section) SetRecency(i, recency uint32) {
	if s.recency != nil {
		atomic.StoreUint32(&s.recency[i], recency)
		return
	}
	// Aligned: the image is, records are 128 bytes and the field is at 96.
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&s.bytes(i)[recencyOffset])), recency)
	page := recordPage(i)
	s.aged[page/64] |= 1 << (page % 64)
}
