package msgpack

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"unicode"
)

// Kind is the type of a MessagePack value.
type Kind uint8

// The kinds of values. End stands for the end of the input, and Invalid for the
// byte 0xc1, which MessagePack never uses.
const (
	End Kind = iota
	Nil
	Bool
	Int
	Float
	Text
	Bin
	Array
	Map
	Ext
	Invalid
)

// String returns the kind's name in error messages.
func (k Kind) String() string {
	return [...]string{"the end of the input", "nil", "a boolean", "an integer", "a float", "a string",
		"bytes", "an array", "a map", "an extension", "the unused byte 0xc1"}[k]
}

// kindOf returns the kind of the value that begins with byte b.
func kindOf(b byte) Kind {
	switch {
	case b < 0x80 || b >= 0xe0 || b >= 0xcc && b <= 0xd3:
		return Int
	case b < 0x90 || b >= 0xde && b <= 0xdf:
		return Map
	case b < 0xa0 || b >= 0xdc && b <= 0xdd:
		return Array
	case b < 0xc0 || b >= 0xd9 && b <= 0xdb:
		return Text
	case b >= 0xc4 && b <= 0xc6:
		return Bin
	case b == 0xc0:
		return Nil
	case b == 0xc1:
		return Invalid
	case b <= 0xc3:
		return Bool
	case b == 0xca || b == 0xcb:
		return Float
	}
	return Ext
}

// Reader reads MessagePack values one after the other. The first error stays in
// Err: every later read returns a zero value and consumes nothing, so that
// callers check Err once for several reads. Returned slices borrow from the
// input. No read allocates, except to describe an error. A Reader is for one
// goroutine.
type Reader struct {
	buf []byte
	off int
	// Err is the first error.
	Err error
}

// NewReader returns a reader of b.
func NewReader(b []byte) *Reader { return &Reader{buf: b} }

// Reset makes c a reader of b.
func (c *Reader) Reset(b []byte) { *c = Reader{buf: b} }

// Offset returns the number of bytes read.
func (c *Reader) Offset() int { return c.off }

// Rewind goes back to an earlier Offset and clears Err.
func (c *Reader) Rewind(offset int) { c.off, c.Err = offset, nil }

// Since returns the bytes read since an earlier Offset.
func (c *Reader) Since(offset int) []byte { return c.buf[offset:c.off] }

// left returns the number of unread bytes. left bounds every length in the
// input, because each element takes at least one byte.
func (c *Reader) left() int { return len(c.buf) - c.off }

// Peek returns the kind of the next value without reading it.
func (c *Reader) Peek() Kind {
	if c.Err != nil || c.off >= len(c.buf) {
		return End
	}
	return kindOf(c.buf[c.off])
}

// Fail records an error at the current position unless Err is set.
func (c *Reader) Fail(format string, args ...any) {
	if c.Err == nil {
		c.Err = fmt.Errorf("byte %d: %s", c.off, fmt.Sprintf(format, args...))
	}
}

// Mismatch fails because the next value is not the wanted one.
func (c *Reader) Mismatch(want string) {
	if c.Err == nil {
		c.Fail("got %s, want %s", c.Peek(), want)
	}
}

// take returns the next n bytes of the input, without a copy. It fails c when fewer are left.
func (c *Reader) take(n uint64) []byte {
	if c.Err != nil {
		return nil
	}
	if n > uint64(c.left()) {
		c.Fail("want %d bytes, %d left", n, c.left())
		return nil
	}
	b := c.buf[c.off : c.off+int(n)]
	c.off += int(n)
	return b
}

// bigEndian reads an unsigned number of n bytes. The number is 0 after an error.
func (c *Reader) bigEndian(n uint64) uint64 {
	var v uint64
	for _, b := range c.take(n) {
		v = v<<8 | uint64(b)
	}
	return v
}

// Integer reads an integer of any size and sign. The bits of a negative integer
// are its two's complement.
func (c *Reader) Integer() (bits uint64, negative bool) {
	if c.Peek() != Int {
		c.Mismatch("an integer")
		return 0, false
	}
	b := c.buf[c.off]
	c.off++
	switch {
	case b < 0x80:
		return uint64(b), false
	case b >= 0xe0:
		return uint64(int8(b)), true
	case b <= 0xcf: // unsigned of 1, 2, 4 or 8 bytes
		return c.bigEndian(1 << (b - 0xcc)), false
	}
	// Signed of 1, 2, 4 or 8 bytes. The two shifts extend the sign.
	size := uint64(1) << (b - 0xd0)
	shift := 64 - 8*size
	v := int64(c.bigEndian(size)<<shift) >> shift
	return uint64(v), v < 0
}

// Uint reads an unsigned integer of at most limit.
func (c *Reader) Uint(limit uint64) uint64 {
	start := c.off
	v, negative := c.Integer()
	if c.Err == nil && (negative || v > limit) {
		c.off = start
		if negative {
			c.Fail("%d is not in 0..%d", int64(v), limit)
		} else {
			c.Fail("%d is not in 0..%d", v, limit)
		}
	}
	if c.Err != nil {
		return 0
	}
	return v
}

// Uint64 reads an unsigned integer.
func (c *Reader) Uint64() uint64 { return c.Uint(math.MaxUint64) }

// Uint32 reads an unsigned integer of at most 32 bits.
func (c *Reader) Uint32() uint32 {
	// Most calls read a token. This shortcut covers the three forms that tokens of
	// usual vocabularies have.
	if b := c.buf[c.off:]; c.Err == nil && len(b) >= 5 {
		switch {
		case b[0] < 0x80:
			c.off++
			return uint32(b[0])
		case b[0] == 0xcd:
			c.off += 3
			return uint32(binary.BigEndian.Uint16(b[1:]))
		case b[0] == 0xce:
			c.off += 5
			return binary.BigEndian.Uint32(b[1:])
		}
	}
	return uint32(c.Uint(math.MaxUint32))
}

// OptionalUint64 reads an unsigned integer or nil.
func (c *Reader) OptionalUint64() (v uint64, has bool) {
	if c.Null() {
		return 0, false
	}
	return c.Uint64(), true
}

// Number reads a float or an integer as a float64. Integers beyond 2^53 are rounded.
func (c *Reader) Number() float64 {
	switch c.Peek() {
	case Int:
		v, negative := c.Integer()
		if negative {
			return float64(int64(v))
		}
		return float64(v)
	case Float:
		c.off++
		if c.buf[c.off-1] == 0xca {
			return float64(math.Float32frombits(uint32(c.bigEndian(4))))
		}
		return math.Float64frombits(c.bigEndian(8))
	}
	c.Mismatch("a number")
	return 0
}

// Boolean reads a boolean.
func (c *Reader) Boolean() bool {
	if c.Peek() != Bool {
		c.Mismatch("a boolean")
		return false
	}
	c.off++
	return c.buf[c.off-1] == 0xc3 // 0xc2 is false
}

// Null reads nil if nil is next, and reports whether it was.
func (c *Reader) Null() bool {
	if c.Peek() != Nil {
		return false
	}
	c.off++
	return true
}

// Text reads a string. The bytes are part of the input and valid as long as it.
func (c *Reader) Text() []byte {
	if c.Peek() != Text {
		c.Mismatch("a string")
		return nil
	}
	b := c.buf[c.off]
	c.off++
	if b < 0xc0 { // a short string has its length in the low five bits
		return c.take(uint64(b & 0x1f))
	}
	return c.take(c.bigEndian(1 << (b - 0xd9)))
}

// BoundedText reads a string of at most limit bytes without control characters, so that a log or a
// terminal can show it. Another string fails c.
func (c *Reader) BoundedText(limit int) string {
	b := c.Text()
	if len(b) > limit {
		c.Fail("%d bytes, want at most %d", len(b), limit)
		return ""
	}
	if bytes.ContainsFunc(b, unicode.IsControl) {
		c.Fail("%.64q has a control character", b)
		return ""
	}
	return string(b)
}

// Bin reads a byte string. The bytes are part of the input and valid as long as it.
func (c *Reader) Bin() []byte {
	if c.Peek() != Bin {
		c.Mismatch("bytes")
		return nil
	}
	b := c.buf[c.off]
	c.off++
	return c.take(c.bigEndian(1 << (b - 0xc4)))
}

// Array reads the header of an array and returns its length. The length is at
// most the number of bytes left.
func (c *Reader) Array() int {
	if c.Peek() != Array {
		c.Mismatch("an array")
		return 0
	}
	b := c.buf[c.off]
	c.off++
	if b < 0xa0 {
		return c.length(uint64(b & 0x0f))
	}
	return c.length(c.bigEndian(2 << (b - 0xdc)))
}

// Map reads the header of a map and returns the number of its pairs. The number
// is at most half the number of bytes left.
func (c *Reader) Map() int {
	if c.Peek() != Map {
		c.Mismatch("a map")
		return 0
	}
	b := c.buf[c.off]
	c.off++
	n := uint64(b & 0x0f)
	if b >= 0xde {
		n = c.bigEndian(2 << (b - 0xde))
	}
	return c.length(2*n) / 2
}

// length returns n if n values can still follow, and fails c otherwise. A value takes at least
// one byte, so a false announcement of many values cannot cause a large allocation.
func (c *Reader) length(n uint64) int {
	if c.Err != nil {
		return 0
	}
	if n > uint64(c.left()) {
		c.Fail("%d values announced, %d bytes left", n, c.left())
		return 0
	}
	return int(n)
}

// Skip passes over one value. Skip counts the values still to come instead of
// recursing, so deep nesting needs no stack. An announced length that exceeds the
// input ends Skip at once.
func (c *Reader) Skip() {
	for todo := 1; todo > 0 && c.Err == nil; todo-- {
		switch kind := c.Peek(); kind {
		case Nil, Bool:
			c.off++
		case Int:
			c.Integer()
		case Float:
			c.Number()
		case Text:
			c.Text()
		case Bin:
			c.Bin()
		case Array:
			todo += c.Array()
		case Map:
			todo += 2 * c.Map()
		case Ext:
			c.extension()
		default:
			c.Mismatch("a value")
		}
		if c.Err == nil && todo-1 > c.left() {
			c.Fail("%d values announced, %d bytes left", todo-1, c.left())
		}
	}
}

// extension skips an extension value, which is a type byte and data.
func (c *Reader) extension() {
	b := c.buf[c.off]
	c.off++
	if b >= 0xd4 {
		c.take(1 + 1<<(b-0xd4))
		return
	}
	c.take(1 + c.bigEndian(1<<(b-0xc7)))
}

// End fails if bytes are left.
func (c *Reader) End() {
	if c.Err == nil && c.left() > 0 {
		c.Fail("%d bytes after the end", c.left())
	}
}

// Keys is the set of the required keys of a map that have been read.
type Keys uint32

// Add adds key number i, which is at most 31.
func (s *Keys) Add(i int) { *s |= 1 << i }

// Require fails the reader unless the keys 0, 1, … have been read. names are the
// keys in that order.
func (s Keys) Require(c *Reader, names ...string) {
	for i, name := range names {
		if s&(1<<i) == 0 {
			c.Fail("no %s", name)
		}
	}
}
