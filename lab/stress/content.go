package stress

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// fill writes the content of the commit with the given nonce: the nonce, and then
// words of which each depends on key and nonce, so that no part of it can be taken
// for a part of anything else. The length of data is a multiple of 8.
func fill(data []byte, key kv.StoredKey, nonce uint64) {
	binary.LittleEndian.PutUint64(data, nonce)
	words := rand.NewPCG(binary.LittleEndian.Uint64(key[:]), nonce)
	for i := 8; i < len(data); i += 8 {
		binary.LittleEndian.PutUint64(data[i:], words.Uint64())
	}
}

// nonceOf is the nonce that content claims to have.
func nonceOf(data []byte) uint64 { return binary.LittleEndian.Uint64(data) }

// holds reports whether data is, to the last bit, the content of a commit.
func holds(data []byte, key kv.StoredKey, nonce uint64) bool {
	if nonceOf(data) != nonce {
		return false
	}
	words := rand.NewPCG(binary.LittleEndian.Uint64(key[:]), nonce)
	for i := 8; i < len(data); i += 8 {
		if binary.LittleEndian.Uint64(data[i:]) != words.Uint64() {
			return false
		}
	}
	return true
}

// scribble fills data with what no commit ever has: nonces are never 0.
func scribble(data []byte, rng *rand.Rand) {
	clear(data[:8])
	for i := 8; i < len(data); i += 8 {
		binary.LittleEndian.PutUint64(data[i:], rng.Uint64())
	}
}
