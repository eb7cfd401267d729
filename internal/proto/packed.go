package proto

import (
	"encoding/binary"
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Slot names one slot of an extent at one generation. A generation is used once: a
// slot that is granted again has a higher one.
type Slot struct {
	Extent     uint32
	Index      uint32
	Generation uint64
}

// GrantedSlot is a slot granted for the block with index Block of the request.
type GrantedSlot struct {
	Block uint32
	Slot
}

// Sizes of the packed forms, in bytes.
const (
	packedTokenSize = 4
	packedSlotSize  = 16
	packedGrantSize = 24
	packedHashSize  = 8
)

// AppendTokens packs tokens or device block ids, u32 little-endian each.
func AppendTokens(b []byte, tokens []uint32) []byte {
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return b
}

// ParseTokens appends the tokens packed in b to dst. The error says that b has a broken length.
func ParseTokens(dst []uint32, b []byte) ([]uint32, error) {
	if len(b)%packedTokenSize != 0 {
		return dst, fmt.Errorf("packed tokens: %d bytes is not a multiple of %d", len(b), packedTokenSize)
	}
	for ; len(b) > 0; b = b[packedTokenSize:] {
		dst = append(dst, binary.LittleEndian.Uint32(b))
	}
	return dst, nil
}

// AppendSlots packs slots: u32 extent | u32 index | u64 generation each,
// little-endian.
func AppendSlots(b []byte, slots []Slot) []byte {
	for _, s := range slots {
		b = appendSlot(b, s)
	}
	return b
}

// ParseSlots appends the slots packed in b to dst. The error says that b has a broken length.
func ParseSlots(dst []Slot, b []byte) ([]Slot, error) {
	if len(b)%packedSlotSize != 0 {
		return dst, fmt.Errorf("packed slots: %d bytes is not a multiple of %d", len(b), packedSlotSize)
	}
	for ; len(b) > 0; b = b[packedSlotSize:] {
		dst = append(dst, parseSlot(b))
	}
	return dst, nil
}

// AppendGrants appends granted slots to b in packed form: u32 block | u32 extent | u32 index |
// u32 zero | u64 generation each, little-endian.
func AppendGrants(b []byte, grants []GrantedSlot) []byte {
	for _, g := range grants {
		b = binary.LittleEndian.AppendUint32(b, g.Block)
		b = binary.LittleEndian.AppendUint32(b, g.Extent)
		b = binary.LittleEndian.AppendUint32(b, g.Index)
		b = binary.LittleEndian.AppendUint32(b, 0)
		b = binary.LittleEndian.AppendUint64(b, g.Generation)
	}
	return b
}

// ParseGrants appends the granted slots packed in b to dst. The error says that b has a broken
// length.
func ParseGrants(dst []GrantedSlot, b []byte) ([]GrantedSlot, error) {
	if len(b)%packedGrantSize != 0 {
		return dst, fmt.Errorf("packed grants: %d bytes is not a multiple of %d", len(b), packedGrantSize)
	}
	for ; len(b) > 0; b = b[packedGrantSize:] {
		dst = append(dst, GrantedSlot{
			Block: binary.LittleEndian.Uint32(b),
			Slot: Slot{
				Extent:     binary.LittleEndian.Uint32(b[4:]),
				Index:      binary.LittleEndian.Uint32(b[8:]),
				Generation: binary.LittleEndian.Uint64(b[16:]),
			},
		})
	}
	return dst, nil
}

// AppendHashes packs sequence hashes: u64 little-endian each.
func AppendHashes(b []byte, hashes []kv.SequenceHash) []byte {
	for _, h := range hashes {
		b = binary.LittleEndian.AppendUint64(b, uint64(h))
	}
	return b
}

// ParseHashes appends the hashes packed in b to dst. The error says that b has a broken length.
func ParseHashes(dst []kv.SequenceHash, b []byte) ([]kv.SequenceHash, error) {
	if len(b)%packedHashSize != 0 {
		return dst, fmt.Errorf("packed hashes: %d bytes is not a multiple of %d", len(b), packedHashSize)
	}
	for ; len(b) > 0; b = b[packedHashSize:] {
		dst = append(dst, kv.SequenceHash(binary.LittleEndian.Uint64(b)))
	}
	return dst, nil
}

// AppendEngineHashes packs an engine's own hashes: u64 little-endian each.
func AppendEngineHashes(b []byte, hashes []kv.EngineHash) []byte {
	for _, h := range hashes {
		b = binary.LittleEndian.AppendUint64(b, uint64(h))
	}
	return b
}

// ParseEngineHashes appends the hashes packed in b to dst. The error says that b has a broken
// length.
func ParseEngineHashes(dst []kv.EngineHash, b []byte) ([]kv.EngineHash, error) {
	if len(b)%packedHashSize != 0 {
		return dst, fmt.Errorf("packed engine hashes: %d bytes is not a multiple of %d", len(b), packedHashSize)
	}
	for ; len(b) > 0; b = b[packedHashSize:] {
		dst = append(dst, kv.EngineHash(binary.LittleEndian.Uint64(b)))
	}
	return dst, nil
}

func appendSlot(b []byte, s Slot) []byte {
	b = binary.LittleEndian.AppendUint32(b, s.Extent)
	b = binary.LittleEndian.AppendUint32(b, s.Index)
	return binary.LittleEndian.AppendUint64(b, s.Generation)
}

func parseSlot(b []byte) Slot {
	return Slot{
		Extent:     binary.LittleEndian.Uint32(b),
		Index:      binary.LittleEndian.Uint32(b[4:]),
		Generation: binary.LittleEndian.Uint64(b[8:]),
	}
}
