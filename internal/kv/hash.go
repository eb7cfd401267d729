package kv

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/zeebo/xxh3"
)

// LocalHash is the hash of one block's tokens, LoRA and salt. It covers the content
// only.
type LocalHash uint64

// SequenceHash is the hash of a block with its whole prefix.
type SequenceHash uint64

// EngineHash is an engine's own name for a block, opaque to us. Of a hash that is a
// byte string the last eight bytes count, big-endian. vLLM does the same in integer
// mode.
type EngineHash uint64

// HashSeed is the XXH3 seed of tokens and of the chain: Dynamo's XXH3_SEED and
// CHAIN_XXH3_SEED.
const HashSeed uint64 = 1337

// MaxNameBytes is the longest LoRA name or cache salt that is kept unchanged.
const MaxNameBytes = 1024

// BoundedName returns name, or "sha256:" and its SHA-256 in hexadecimal if name is
// longer than MaxNameBytes. Clients choose salts of any length. The connector sends
// long names in the same form.
func BoundedName(name string) string {
	if len(name) <= MaxNameBytes {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// LocalSeed returns the XXH3 seed of a request's blocks: HashSeed, plus the LoRA
// name's hash (seed 0), plus the cache salt's hash (seed 1), wrapping. An empty
// string counts as absent, and a long one as its BoundedName.
func LocalSeed(lora, salt string) uint64 {
	seed := HashSeed
	if lora != "" {
		seed += xxh3.HashStringSeed(BoundedName(lora), 0)
	}
	if salt != "" {
		seed += xxh3.HashStringSeed(BoundedName(salt), 1)
	}
	return seed
}

// Hasher computes LocalHashes without an allocation per block. A Hasher is for one
// goroutine. The zero value is ready.
type Hasher struct {
	buf    []byte
	sorted []uint64
}

// Local returns the hash of one block's tokens under seed (see LocalSeed). mm holds
// the hashes of the multimodal objects in the block, nil for text. They are hashed
// sorted, as in Dynamo's router, so their order does not matter.
func (h *Hasher) Local(tokens []uint32, seed uint64, mm []uint64) LocalHash {
	h.buf = h.buf[:0]
	for _, t := range tokens {
		h.buf = binary.LittleEndian.AppendUint32(h.buf, t)
	}
	if len(mm) > 0 {
		h.sorted = append(h.sorted[:0], mm...)
		slices.Sort(h.sorted)
		for _, m := range h.sorted {
			h.buf = binary.LittleEndian.AppendUint64(h.buf, m)
		}
	}
	return LocalHash(xxh3.HashSeed(h.buf, seed))
}

// AppendLocals appends the LocalHash of each full block of tokens to dst. A tail
// shorter than blockSize is ignored. A blockSize of 0 yields nothing.
func (h *Hasher) AppendLocals(dst []LocalHash, tokens []uint32, blockSize int, seed uint64) []LocalHash {
	if blockSize <= 0 {
		return dst
	}
	for ; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		dst = append(dst, h.Local(tokens[:blockSize], seed, nil))
	}
	return dst
}

// BlockTokens returns the tokens that block i is hashed over: blockSize tokens.
// With pairs, for engines that cache token pairs (Eagle, bigram), the first token
// of the next block is added. All of the tokens must exist.
func BlockTokens(tokens []uint32, i, blockSize int, pairs bool) []uint32 {
	first, last := i*blockSize, (i+1)*blockSize
	if pairs {
		last++
	}
	return tokens[first:last]
}

// Chain returns the SequenceHash of a block with a LocalHash and a parent. A block
// without parent has SequenceHash(local).
func Chain(parent SequenceHash, local LocalHash) SequenceHash {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(parent))
	binary.LittleEndian.PutUint64(b[8:], uint64(local))
	return SequenceHash(xxh3.HashSeed(b[:], HashSeed))
}

// AppendSequence appends the SequenceHash of each block of a sequence to dst: the hash of the
// block with its whole prefix. locals are the blocks' LocalHashes from the first block on.
func AppendSequence(dst []SequenceHash, locals []LocalHash) []SequenceHash {
	var parent SequenceHash
	for i, l := range locals {
		s := SequenceHash(l) // the first block has no parent
		if i > 0 {
			s = Chain(parent, l)
		}
		dst = append(dst, s)
		parent = s
	}
	return dst
}

// Digest returns the term that a block adds to the digest of its owner. The term
// mixes hash and tier. The 64-bit sum of the terms does not depend on their order.
func Digest(h SequenceHash, t Tier) uint64 {
	x := uint64(h) + 0x9e3779b97f4a7c15*(uint64(t)+1)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// InGroup returns the name of the block of KV group g that ends where block h ends. Group 0 is
// the primary group, whose blocks keep their names. Equal blocks of different groups have
// different names.
func InGroup(h SequenceHash, g uint32) SequenceHash {
	if g == 0 {
		return h
	}
	x := uint64(h) ^ uint64(g)*0x9e3779b97f4a7c15
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	return SequenceHash(x ^ x>>32)
}
