package msgpack

import (
	"bytes"
	"math"
	"slices"
	"testing"
)

func TestSkipPassesOverEveryKindOfValue(t *testing.T) {
	for name, value := range map[string][]byte{
		"nil": {0xc0}, "false": {0xc2}, "fixint": {0x7f}, "negative fixint": {0xff},
		"uint8": {0xcc, 1}, "uint64": {0xcf, 1, 2, 3, 4, 5, 6, 7, 8}, "int16": {0xd1, 1, 2},
		"float32": {0xca, 1, 2, 3, 4}, "float64": {0xcb, 1, 2, 3, 4, 5, 6, 7, 8},
		"fixstr": {0xa2, 'a', 'b'}, "str16": {0xda, 0, 1, 'a'}, "str32": {0xdb, 0, 0, 0, 1, 'a'},
		"bin8": {0xc4, 1, 9}, "bin16": {0xc5, 0, 1, 9}, "bin32": {0xc6, 0, 0, 0, 1, 9},
		"fixext1": {0xd4, 1, 2}, "fixext16": append([]byte{0xd8, 1}, make([]byte, 16)...),
		"ext8": {0xc7, 2, 1, 8, 9}, "ext16": {0xc8, 0, 1, 1, 9}, "ext32": {0xc9, 0, 0, 0, 0, 1},
		"array16": {0xdc, 0, 2, 0xc0, 0x91, 1}, "array32": {0xdd, 0, 0, 0, 1, 1},
		"map16": {0xde, 0, 1, 1, 0x81, 2, 3}, "map32": {0xdf, 0, 0, 0, 1, 1, 2},
	} {
		c := Reader{buf: value}
		c.Skip()
		if c.End(); c.Err != nil {
			t.Errorf("%s: %v", name, c.Err)
		}
		for n := range value {
			c := Reader{buf: value[:n]}
			if c.Skip(); c.Err == nil {
				t.Errorf("%s: no error for its first %d bytes", name, n)
			}
		}
	}
	if c := (Reader{buf: []byte{0xc1}}); c.Peek() != Invalid {
		t.Error("0xc1 is not invalid")
	}
}

func TestSkipNeedsNoStackForDeepNesting(t *testing.T) {
	const depth = 1 << 20
	c := Reader{buf: append(bytes.Repeat([]byte{0x91}, depth), 0xc0)}
	if c.Skip(); c.Err != nil || c.left() != 0 {
		t.Errorf("err %v, %d bytes left", c.Err, c.left())
	}
	c = Reader{buf: bytes.Repeat([]byte{0x91}, depth)}
	if c.Skip(); c.Err == nil {
		t.Error("no error for nesting without a value inside")
	}
}

func TestIntegersAreReadInEveryForm(t *testing.T) {
	for _, tc := range []struct {
		form     []byte
		bits     uint64
		negative bool
	}{
		{[]byte{0x00}, 0, false},
		{[]byte{0x7f}, 127, false},
		{[]byte{0xcc, 0x80}, 128, false},
		{[]byte{0xcd, 0xff, 0xfe}, 65534, false},
		{[]byte{0xce, 0xff, 0xff, 0xff, 0xff}, math.MaxUint32, false},
		{[]byte{0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, math.MaxUint64, false},
		{[]byte{0xd0, 0x7f}, 127, false},
		{[]byte{0xd1, 0x00, 0x01}, 1, false},
		{[]byte{0xd3, 0, 0, 0, 0, 0, 0, 0, 5}, 5, false},
		{[]byte{0xff}, math.MaxUint64, true},
		{[]byte{0xe0}, math.MaxUint64 - 31, true},
		{[]byte{0xd0, 0x80}, math.MaxUint64 - 127, true},
		{[]byte{0xd2, 0x80, 0, 0, 0}, 0xffffffff80000000, true},
		{[]byte{0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0}, 1 << 63, true},
	} {
		c := Reader{buf: tc.form}
		bits, negative := c.Integer()
		if c.End(); c.Err != nil || bits != tc.bits || negative != tc.negative {
			t.Errorf("% x: got %#x, negative %t, %v", tc.form, bits, negative, c.Err)
		}
		// With bytes behind it, the reader of tokens takes its short way.
		c = Reader{buf: slices.Concat(tc.form, make([]byte, 8))}
		v := c.Uint32()
		if fits := !tc.negative && tc.bits <= math.MaxUint32; fits != (c.Err == nil) || fits && uint64(v) != tc.bits {
			t.Errorf("% x as uint32: got %d, %v", tc.form, v, c.Err)
		}
	}
}
