package msgpacktest

import (
	"testing"

	"github.com/tinylib/msgp/msgp"
)

// Dict is a msgpack map whose pairs are written in order: key, value, ….
type Dict []any

// Encode encodes nested lists ([]any), Dicts, strings, bytes, numbers, booleans
// and nil.
func Encode(tb testing.TB, v any) []byte {
	tb.Helper()
	return appendValue(tb, nil, v)
}

// appendValue appends v to dst: a Dict as a map, a slice as an array, and anything else as the
// msgpack library encodes it.
func appendValue(tb testing.TB, dst []byte, v any) []byte {
	switch v := v.(type) {
	case Dict:
		dst = msgp.AppendMapHeader(dst, uint32(len(v)/2))
		for _, x := range v {
			dst = appendValue(tb, dst, x)
		}
	case []any:
		dst = msgp.AppendArrayHeader(dst, uint32(len(v)))
		for _, x := range v {
			dst = appendValue(tb, dst, x)
		}
	default:
		var err error
		if dst, err = msgp.AppendIntf(dst, v); err != nil {
			tb.Fatal(err)
		}
	}
	return dst
}

// List is a msgpack array.
type List = []any
