package storage

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Bind ties a content sum to one life of one slot, so that the record of an
// earlier generation never vouches for the bytes of a later one. It is its own
// inverse: Bind(Bind(s, k, g), k, g) == s. That is how a sum moves to another
// slot without being computed again from a copy that may already be bad.
func Bind(sum uint64, key kv.StoredKey, generation uint64) uint64 {
	var g [8]byte
	binary.LittleEndian.PutUint64(g[:], generation)
	return sum ^ xxh3.HashSeed(g[:], xxh3.Hash(key[:]))
}
