package engineevent

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
