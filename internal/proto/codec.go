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
// version need 2. A later minor version may add a few levels.
const maxDepth = 8

// NewMessage returns an empty body for a frame of type t. The body is nil for
// TypeOK, which has none. ok is false for an unknown type.
func NewMessage(t Type) (Message, bool) {
	switch t {
	case TypeHello:
		return new(Hello), true
	case TypeWelcome:
		return new(Welcome), true
	case TypeRegister:
		return new(Register), true
	case TypeExtentReady:
		return new(ExtentReady), true
	case TypeOK:
		return nil, true
	case TypeError:
		return new(Error), true
	case TypeOpen:
		return new(Open), true
	case TypeAppend:
		return new(Append), true
	case TypeLookup:
		return new(Lookup), true
	case TypeLookupHit:
		return new(LookupHit), true
	case TypeClaim:
		return new(Claim), true
	case TypeClaimed:
		return new(Claimed), true
	case TypeStore:
		return new(Store), true
	case TypeGrant:
		return new(Grant), true
	case TypeCommit, TypeAbort:
		return new(SlotList), true
	case TypeRelease:
		return new(Range), true
	case TypeLoad:
		return new(Load), true
	case TypeClose:
		return new(Close), true
	case TypeBye:
		return new(Bye), true
	case TypeResume:
		return new(Resume), true
	case TypeResumed:
		return new(Resumed), true
	case TypeEvicted:
		return new(Evicted), true
	case TypeReset:
		return new(Reset), true
	case TypeStats:
		return new(Stats), true
	case TypeDrain:
		return new(Drain), true
	case TypeListCached:
		return new(ListCached), true
	case TypeCached:
		return new(Cached), true
	}
	return nil, false
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
