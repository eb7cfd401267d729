package engine

import (
	"encoding/binary"
	"math/bits"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// fillBlock writes the KV bytes of the block with identity key over the whole
// of dst.
func fillBlock(dst []byte, key kv.BlockKey) {
	lo, hi := binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])
	for len(dst) >= 8 {
		lo += weyl
		binary.LittleEndian.PutUint64(dst, payloadWord(lo, hi))
		dst = dst[8:]
	}
	if len(dst) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], payloadWord(lo+weyl, hi))
		copy(dst, last[:])
	}
}

// wrongBytes is the number of bytes of b that differ from what fillBlock
// writes for key.
func wrongBytes(b []byte, key kv.BlockKey) int {
	lo, hi := binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])
	wrong := 0
	for len(b) >= 8 {
		lo += weyl
		if d := binary.LittleEndian.Uint64(b) ^ payloadWord(lo, hi); d != 0 {
			wrong += nonzeroBytes(d)
		}
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], payloadWord(lo+weyl, hi))
		for i := range b {
			if b[i] != last[i] {
				wrong++
			}
		}
	}
	return wrong
}

// weyl is the step of the counter under the generator: 2^64 over the golden
// ratio, odd, so that it runs through every word before it repeats.
const weyl = 0x9e3779b97f4a7c15

// payloadWord is one word of a keyed generator: two multiply-shift rounds over
// the counter, with the key's other half mixed in between.
func payloadWord(counter, hi uint64) uint64 {
	x := (counter ^ counter>>30) * 0xbf58476d1ce4e5b9
	x ^= hi
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// nonzeroBytes counts the bytes of d that are not zero: it folds each byte's
// bits into its lowest one.
func nonzeroBytes(d uint64) int {
	d |= d >> 4
	d |= d >> 2
	d |= d >> 1
	return bits.OnesCount64(d & 0x0101010101010101)
}
