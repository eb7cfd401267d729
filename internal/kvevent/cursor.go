package kvevent

import (
	"encoding/binary"
	"fmt"
	"math"
)

// wireKind classes the next msgpack value by its first byte.
type wireKind uint8

const (
	wireEnd wireKind = iota // no byte is left
	wireNil
	wireBool
	wireInt
	wireFloat
	wireText
	wireBin
	wireArray
	wireMap
	wireExt
	wireInvalid // 0xc1, which msgpack never uses
)

// String is the kind's name in error messages.
func (k wireKind) String() string {
	return [...]string{"the end of the input", "nil", "a boolean", "an integer", "a float", "a string",
		"bytes", "an array", "a map", "an extension", "the unused byte 0xc1"}[k]
}

// kindOf classes a value by its first byte.
func kindOf(b byte) wireKind {
	switch {
	case b < 0x80 || b >= 0xe0 || b >= 0xcc && b <= 0xd3:
		return wireInt
	case b < 0x90 || b >= 0xde && b <= 0xdf:
		return wireMap
	case b < 0xa0 || b >= 0xdc && b <= 0xdd:
		return wireArray
	case b < 0xc0 || b >= 0xd9 && b <= 0xdb:
		return wireText
	case b >= 0xc4 && b <= 0xc6:
		return wireBin
	case b == 0xc0:
		return wireNil
	case b == 0xc1:
		return wireInvalid
	case b <= 0xc3:
		return wireBool
	case b == 0xca || b == 0xcb:
		return wireFloat
	}
	return wireExt
}

// cursor reads msgpack from a byte slice without allocating. Its error sticks:
// after the first one every read returns a zero value and nothing advances, so
// that callers check err once per field instead of once per value. Slices it
// returns borrow from buf.
type cursor struct {
	buf []byte
	off int
	err error
}

// left is the number of unread bytes. It bounds every length read from the
// input, because each element takes at least one byte.
func (c *cursor) left() int { return len(c.buf) - c.off }

// peek is the kind of the next value.
func (c *cursor) peek() wireKind {
	if c.err != nil || c.off >= len(c.buf) {
		return wireEnd
	}
	return kindOf(c.buf[c.off])
}

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("byte %d: %s", c.off, fmt.Sprintf(format, args...))
	}
}

// mismatch fails because the next value is not what was wanted.
func (c *cursor) mismatch(want string) {
	if c.err == nil {
		c.fail("got %s, want %s", c.peek(), want)
	}
}

// take reads n bytes.
func (c *cursor) take(n uint64) []byte {
	if c.err != nil {
		return nil
	}
	if n > uint64(c.left()) {
		c.fail("want %d bytes, %d left", n, c.left())
		return nil
	}
	b := c.buf[c.off : c.off+int(n)]
	c.off += int(n)
	return b
}

// bigEndian reads an unsigned number of n bytes; 0 after an error.
func (c *cursor) bigEndian(n uint64) uint64 {
	var v uint64
	for _, b := range c.take(n) {
		v = v<<8 | uint64(b)
	}
	return v
}

// integer reads any integer as 64 bits, two's complement when negative.
func (c *cursor) integer() (bits uint64, negative bool) {
	if c.peek() != wireInt {
		c.mismatch("an integer")
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
	size := uint64(1) << (b - 0xd0)
	shift := 64 - 8*size
	v := int64(c.bigEndian(size)<<shift) >> shift
	return uint64(v), v < 0
}

// uint reads an unsigned integer of at most limit.
func (c *cursor) uint(limit uint64) uint64 {
	start := c.off
	v, negative := c.integer()
	if c.err == nil && (negative || v > limit) {
		c.off = start
		if negative {
			c.fail("%d is not in 0..%d", int64(v), limit)
		} else {
			c.fail("%d is not in 0..%d", v, limit)
		}
	}
	if c.err != nil {
		return 0
	}
	return v
}

func (c *cursor) uint64() uint64 { return c.uint(math.MaxUint64) }

func (c *cursor) uint32() uint32 {
	// Tokens come through here: the three forms that a vocabulary needs are read
	// in line.
	if b := c.buf[c.off:]; c.err == nil && len(b) >= 5 {
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
	return uint32(c.uint(math.MaxUint32))
}

// engineHash reads a block hash: an integer of either sign, bit for bit, or
// bytes, of which the last eight count.
func (c *cursor) engineHash() uint64 {
	switch c.peek() {
	case wireInt:
		v, _ := c.integer()
		return v
	case wireBin:
		b := c.bin()
		if c.err == nil && len(b) == 0 {
			c.fail("a hash of no bytes")
		}
		var v uint64
		for _, x := range b[max(0, len(b)-8):] {
			v = v<<8 | uint64(x)
		}
		return v
	}
	c.mismatch("an integer or bytes")
	return 0
}

// number reads a float or an integer.
func (c *cursor) number() float64 {
	switch c.peek() {
	case wireInt:
		v, negative := c.integer()
		if negative {
			return float64(int64(v))
		}
		return float64(v)
	case wireFloat:
		c.off++
		if c.buf[c.off-1] == 0xca {
			return float64(math.Float32frombits(uint32(c.bigEndian(4))))
		}
		return math.Float64frombits(c.bigEndian(8))
	}
	c.mismatch("a number")
	return 0
}

func (c *cursor) boolean() bool {
	if c.peek() != wireBool {
		c.mismatch("a boolean")
		return false
	}
	c.off++
	return c.buf[c.off-1] == 0xc3
}

// null reads nil if that is what comes next, and says whether it did.
func (c *cursor) null() bool {
	if c.peek() != wireNil {
		return false
	}
	c.off++
	return true
}

// text reads a string.
func (c *cursor) text() []byte {
	if c.peek() != wireText {
		c.mismatch("a string")
		return nil
	}
	b := c.buf[c.off]
	c.off++
	if b < 0xc0 {
		return c.take(uint64(b & 0x1f))
	}
	return c.take(c.bigEndian(1 << (b - 0xd9)))
}

// bin reads bytes.
func (c *cursor) bin() []byte {
	if c.peek() != wireBin {
		c.mismatch("bytes")
		return nil
	}
	b := c.buf[c.off]
	c.off++
	return c.take(c.bigEndian(1 << (b - 0xc4)))
}

// array reads the header of an array and returns its length, which is never
// more than the bytes left.
func (c *cursor) array() int {
	if c.peek() != wireArray {
		c.mismatch("an array")
		return 0
	}
	b := c.buf[c.off]
	c.off++
	if b < 0xa0 {
		return c.length(uint64(b & 0x0f))
	}
	return c.length(c.bigEndian(2 << (b - 0xdc)))
}

// mapping reads the header of a map and returns the number of its pairs, which
// is never more than half of the bytes left.
func (c *cursor) mapping() int {
	if c.peek() != wireMap {
		c.mismatch("a map")
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

// length checks that n values can still follow.
func (c *cursor) length(n uint64) int {
	if c.err != nil {
		return 0
	}
	if n > uint64(c.left()) {
		c.fail("%d values announced, %d bytes left", n, c.left())
		return 0
	}
	return int(n)
}

// skip passes over one value. It counts what is still to come instead of
// recursing, so the depth of nesting costs nothing, and what is announced but
// cannot be there ends it at once.
func (c *cursor) skip() {
	for todo := 1; todo > 0 && c.err == nil; todo-- {
		switch kind := c.peek(); kind {
		case wireNil, wireBool:
			c.off++
		case wireInt:
			c.integer()
		case wireFloat:
			c.number()
		case wireText:
			c.text()
		case wireBin:
			c.bin()
		case wireArray:
			todo += c.array()
		case wireMap:
			todo += 2 * c.mapping()
		case wireExt:
			c.extension()
		default:
			c.mismatch("a value")
		}
		if c.err == nil && todo-1 > c.left() {
			c.fail("%d values announced, %d bytes left", todo-1, c.left())
		}
	}
}

// extension passes over an extension value: a type byte and its data.
func (c *cursor) extension() {
	b := c.buf[c.off]
	c.off++
	if b >= 0xd4 {
		c.take(1 + 1<<(b-0xd4))
		return
	}
	c.take(1 + c.bigEndian(1<<(b-0xc7)))
}

// end fails if anything is left.
func (c *cursor) end() {
	if c.err == nil && c.left() > 0 {
		c.fail("%d bytes after the end", c.left())
	}
}
