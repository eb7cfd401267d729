package engine

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

func TestPayloadEverySingleFlippedByteIsFound(t *testing.T) {
	for _, size := range []int{4096, 4093, 7, 8, 1} {
		key := kv.BlockKey{1, 2, 3, 15: 9}
		b := make([]byte, size)
		fillBlock(b, key)
		if n := wrongBytes(b, key); n != 0 {
			t.Fatalf("size %d: %d wrong bytes in an untouched block", size, n)
		}
		for i := range b {
			for bit := range 8 {
				b[i] ^= 1 << bit
				if n := wrongBytes(b, key); n != 1 {
					t.Fatalf("size %d: bit %d of byte %d flipped: %d wrong bytes, want 1", size, bit, i, n)
				}
				b[i] ^= 1 << bit
			}
		}
	}
}

func TestPayloadWrongBytesAreCountedByteByByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := kv.BlockKey(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "key"))
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
	})
}

func TestPayloadDependsOnEveryByteOfTheKey(t *testing.T) {
	base := make([]byte, 256)
	fillBlock(base, kv.BlockKey{})
	for i := range 16 {
		var key kv.BlockKey
		key[i] = 1
		b := make([]byte, 256)
		fillBlock(b, key)
		same := 0
		for j := range b {
			if b[j] == base[j] {
				same++
			}
		}
		// Two random blocks of 256 bytes agree in one byte on average.
		if same > 10 {
			t.Errorf("key byte %d changed: %d of 256 bytes are still the same", i, same)
		}
	}
}

func BenchmarkFillBlock(b *testing.B) {
	buf := make([]byte, 4096)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		fillBlock(buf, kv.BlockKey{1})
	}
}

func BenchmarkVerifyBlock(b *testing.B) {
	buf := make([]byte, 4096)
	fillBlock(buf, kv.BlockKey{1})
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		wrongBytes(buf, kv.BlockKey{1})
	}
}
