package killloop

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

const (
	// docBlocks is the number of blocks of a document, blockTokens that of tokens
	// in a block of blockBytes bytes.
	docBlocks   = 8
	blockTokens = 16
	blockBytes  = 16 << 10
	// spaces is the number of namespaces.
	spaces = 2
)

// namespaceOf is one of the namespaces of a run.
func namespaceOf(space int) kv.Namespace {
	return kv.Namespace{
		Model: fmt.Sprintf("kill-loop-%d", space), Weights: "none", DType: "bfloat16",
		Layers: 2, OuterDim: 2, BlockSize: blockTokens, InnerDim: blockBytes / (2 * 2 * 2 * blockTokens), DTypeBytes: 2,
		Layout: "fully_contiguous", TP: 1, PP: 1, DCP: 1, KVFormat: "kill-loop-1",
	}
}

// docID names a document, a sequence of tokens: who stores it (0 for one that all
// engines of a namespace store), in which of its lives, and its number there.
// The same id in two namespaces is two documents with equal tokens.
type docID uint64

const (
	docLifeShift   = 24
	docWorkerShift = 48
)

func makeDoc(worker uint64, life, number uint32) docID {
	return docID(worker<<docWorkerShift | uint64(life)<<docLifeShift | uint64(number)&(1<<docLifeShift-1))
}

// tokens begin with the document's id, so that no two documents share a block.
func (d docID) tokens() []uint32 {
	t := make([]uint32, docBlocks*blockTokens)
	for i := range t {
		t[i] = uint32(mix(uint64(d) + uint64(i)))
	}
	t[0], t[1] = uint32(d>>32), uint32(d)
	return t
}

// keys are those of the document's blocks in a namespace.
func (d docID) keys(ns kv.NamespaceID) [docBlocks]kv.BlockKey {
	var keys [docBlocks]kv.BlockKey
	k, tokens := kv.NewKeyer(), d.tokens()
	parent := k.Root(ns, "", "")
	for i := range keys {
		parent = k.Next(parent, tokens[i*blockTokens:(i+1)*blockTokens], nil)
		keys[i] = parent
	}
	return keys
}

// pattern is an endless sequence of bytes that is as good as random; it makes
// what a block holds and what a writer marks a slot with.
type pattern struct{ lo, hi uint64 }

// contentOf is what the block with this key holds.
func contentOf(key kv.BlockKey) pattern {
	return pattern{binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])}
}

// fill writes the bytes from offset on, a multiple of 8, into b, whose length is
// one too.
func (p pattern) fill(b []byte, offset int) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], p.word(offset+i))
	}
}

// wrong counts the bytes of b that fill would not have written.
func (p pattern) wrong(b []byte, offset int) int {
	n := 0
	for i := 0; i < len(b); i += 8 {
		if d := binary.LittleEndian.Uint64(b[i:]) ^ p.word(offset+i); d != 0 {
			n += differing(d)
		}
	}
	return n
}

func (p pattern) word(offset int) uint64 { return mix(p.lo+uint64(offset)) ^ p.hi }

// differing is the number of bytes of d that are not zero.
func differing(d uint64) int {
	d |= d >> 4
	d |= d >> 2
	d |= d >> 1
	return bits.OnesCount64(d & 0x0101010101010101)
}

// mix is a bijection of 64 bits that leaves no pattern (the finalizer of
// SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
