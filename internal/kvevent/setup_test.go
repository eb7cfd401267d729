package kvevent

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/msgpack/msgpacktest"
	"github.com/blockyard-ai/blockyard/internal/recordedtest"
)

type (
	dict = msgpacktest.Dict
	list = msgpacktest.List
)

var wire = msgpacktest.Encode

// golden reads testdata/golden.txt.
func golden(tb testing.TB) map[string][]byte {
	tb.Helper()
	return recordedtest.Vectors(tb, "testdata/golden.txt")
}

// wantWhole checks that decode takes no part of b that ends early.
func wantWhole[T any](t *testing.T, b []byte, decode func([]byte) (T, error)) {
	t.Helper()
	for n := range b {
		if _, err := decode(b[:n]); err == nil {
			t.Errorf("no error for the first %d bytes of %d", n, len(b))
		}
	}
}
