package proto

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// Message is the body of a frame.
type Message interface {
	msgp.Marshaler
	msgp.Unmarshaler
	// Validate checks the range of every field; the error names the first bad
	// field, its value and its range.
	Validate() error
}

// maxDepth bounds the nesting of a body, unknown keys included. The bodies of this
// version need 4. A later minor version may add a few levels.
const maxDepth = 8

// body returns an empty body. It has the type of the bodies table's entries.
func body[M any, P interface {
	*M
	Message
}]() Message {
	return P(new(M))
}

// bodies makes the body of each type of frame that has one.
var bodies = map[Type]func() Message{
	TypeHello:       body[Hello],
	TypeWelcome:     body[Welcome],
	TypeRegister:    body[Register],
	TypeExtentReady: body[ExtentReady],
	TypeError:       body[Error],
	TypeOpen:        body[Open],
	TypeAppend:      body[Append],
	TypeLookup:      body[Lookup],
	TypeLookupHit:   body[LookupHit],
	TypeClaim:       body[Claim],
	TypeClaimed:     body[Claimed],
	TypeStore:       body[Store],
	TypeGrant:       body[Grant],
	TypeCommit:      body[SlotList],
	TypeAbort:       body[SlotList],
	TypeRelease:     body[Range],
	TypeLoad:        body[Load],
	TypeClose:       body[Close],
	TypeBye:         body[Bye],
	TypeResume:      body[Resume],
	TypeResumed:     body[Resumed],
	TypeEvicted:     body[Evicted],
	TypeReset:       body[Reset],
	TypeStats:       body[Stats],
	TypeDrain:       body[Drain],
	TypeListCached:  body[ListCached],
	TypeCached:      body[Cached],
	TypeFit:         body[Fit],
	TypeFitted:      body[Fitted],
}

// NewMessage returns an empty body for a frame of type t. The body is nil for
// TypeOK, which has none. ok is false for an unknown type.
func NewMessage(t Type) (Message, bool) {
	if make, ok := bodies[t]; ok {
		return make(), true
	}
	return nil, t == TypeOK
}

// AppendFrame appends a whole frame to b: the header of type t and correlation corr, and the body
// m, which may be nil. A frame larger than MaxFrame is an error, and b is then returned
// unchanged.
func AppendFrame(b []byte, t Type, corr uint32, m Message) ([]byte, error) {
	start := len(b)
	b = AppendHeader(b, Header{Type: t, Corr: corr})
	if m != nil {
		var err error
		if b, err = m.MarshalMsg(b); err != nil {
			return b[:start], fmt.Errorf("frame %s: %w", t, err)
		}
	}
	size := len(b) - start
	if size > MaxFrame {
		return b[:start], fmt.Errorf("frame %s of %d bytes: want at most %d", t, size, MaxFrame)
	}
	binary.LittleEndian.PutUint32(b[start+12:], uint32(size-HeaderSize))
	return b, nil
}

// Decode reads a frame's body into m and validates it. An error for which
// IsMalformed is true is about the encoding. Any other error is a field outside its
// range, and m then holds the decoded message. m borrows nothing from body.
//
// A length inside body is compared with the available bytes before memory is
// allocated for it.
func Decode(t Type, body []byte, m Message) error {
	if rest, err := skipBounded(body, maxDepth); err != nil {
		return &malformedError{err: fmt.Errorf("frame %s: %w", t, err)}
	} else if len(rest) != 0 {
		return &malformedError{err: fmt.Errorf("frame %s: %d bytes follow the body", t, len(rest))}
	}
	if _, err := m.UnmarshalMsg(body); err != nil {
		return &malformedError{err: fmt.Errorf("frame %s: %w", t, err)}
	}
	if err := m.Validate(); err != nil {
		return fmt.Errorf("%s %w", t, err)
	}
	return nil
}

// skipBounded returns b without its first msgpack value. A value nested deeper than depth is an
// error, so that a hostile frame cannot exhaust the stack.
func skipBounded(b []byte, depth int) ([]byte, error) {
	var n uint64
	var sz uint32
	var err error
	switch msgp.NextType(b) {
	case msgp.MapType:
		sz, b, err = msgp.ReadMapHeaderBytes(b)
		n = 2 * uint64(sz)
	case msgp.ArrayType:
		sz, b, err = msgp.ReadArrayHeaderBytes(b)
		n = uint64(sz)
	default:
		return msgp.Skip(b)
	}
	if err != nil {
		return b, err
	}
	if depth == 0 {
		return b, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	for ; n > 0; n-- { // each turn takes at least one byte or ends in an error
		if b, err = skipBounded(b, depth-1); err != nil {
			return b, err
		}
	}
	return b, nil
}

// malformedError is about bytes that are no frame or no message.
type malformedError struct{ err error }

func (e *malformedError) Error() string { return e.err.Error() }
func (e *malformedError) Unwrap() error { return e.err }

// IsMalformed reports whether err is about bytes that could not be decoded. A
// failed socket and a field outside its range are other errors.
func IsMalformed(err error) bool {
	var m *malformedError
	return errors.As(err, &m)
}

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

// AppendHashes packs hashes, the blocks' own or an engine's: u64 little-endian each.
func AppendHashes[H ~uint64](b []byte, hashes []H) []byte {
	for _, h := range hashes {
		b = binary.LittleEndian.AppendUint64(b, uint64(h))
	}
	return b
}

// ParseHashes appends the hashes packed in b to dst. The error says that b has a broken length.
func ParseHashes[H ~uint64](dst []H, b []byte) ([]H, error) {
	if len(b)%packedHashSize != 0 {
		return dst, fmt.Errorf("packed hashes: %d bytes is not a multiple of %d", len(b), packedHashSize)
	}
	for ; len(b) > 0; b = b[packedHashSize:] {
		dst = append(dst, H(binary.LittleEndian.Uint64(b)))
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
