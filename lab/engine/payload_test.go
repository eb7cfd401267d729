package engine

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestPayloadWrongBytesAreCountedByteByByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := kv.StoredKey(rapid.SliceOfN(rapid.Byte(), 20, 20).Draw(t, "key"))
		want := make([]byte, rapid.IntRange(1, 100).Draw(t, "size"))
		fillBlock(want, key)
		got := bytes.Clone(want)
		for i := range got {
			if rapid.Bool().Draw(t, "damage") {
				got[i] = rapid.Byte().Draw(t, "byte")
			}
		}
		differ := 0
		for i := range got {
			if got[i] != want[i] {
				differ++
			}
		}
		if n := wrongBytes(got, key); n != differ {
			t.Fatalf("wrongBytes = %d, %d bytes differ", n, differ)
		}
		if n := wrongBytes(want, key.Block().InGroup(key.Group()+1)); n == 0 {
			t.Fatal("the blocks of two groups have the same bytes")
		}
	})
}
