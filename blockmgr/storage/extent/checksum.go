package extent

import (
	"github.com/zeebo/xxh3"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// ContentSum is the XXH3-64 of a block's bytes, seeded with its key: equal
// bytes under another identity have another sum. It is computed once, after
// COMMIT, and travels with the block from then on.
func ContentSum(key kv.StoredKey, data []byte) uint64 {
	return xxh3.HashSeed(data, xxh3.Hash(key[:]))
}
