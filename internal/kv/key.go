package kv

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
)

// BlockKey is the 128-bit identity of stored bytes. It is a SHA-256 chain cut to 16
// bytes:
//
//	key_0 = SHA-256(namespace[16] ‖ u32(len lora) ‖ lora ‖ u32(len salt) ‖ salt)[:16]
//	key_i = SHA-256(key_{i-1}[16] ‖ token_0 … token_{n-1} ‖ extra_0 … extra_{m-1})[:16]
//
// key_0 is the root of a request and names no block. key_1 is the first block.
// Integers and tokens are u32 little-endian. lora is the LoRA fingerprint and salt
// the cache salt, both empty when absent. n is the namespace's block size, so the
// end of the tokens needs no mark. An extra (see Extra) is u8(kind) ‖ u32(offset) ‖
// u32(len data) ‖ data.
type BlockKey [16]byte

// String returns the key in hexadecimal.
func (k BlockKey) String() string { return hex.EncodeToString(k[:]) }

// ParseBlockKey returns the block key of 32 hexadecimal digits, as String writes it.
func ParseBlockKey(s string) (BlockKey, error) {
	var k BlockKey
	if len(s) != 2*len(k) {
		return k, fmt.Errorf("block key %q: want %d hexadecimal digits", s, 2*len(k))
	}
	if _, err := hex.Decode(k[:], []byte(s)); err != nil {
		return k, fmt.Errorf("block key %q: %w", s, err)
	}
	return k, nil
}

// StoredKey is the key of stored bytes: a BlockKey with the KV cache group as a
// suffix (u32 big-endian). Hybrid models store one block once per group. Every
// other model has only group 0.
type StoredKey [20]byte

// InGroup returns the key under which the bytes of KV cache group g are stored.
func (k BlockKey) InGroup(g uint32) StoredKey {
	var s StoredKey
	copy(s[:], k[:])
	binary.BigEndian.PutUint32(s[16:], g)
	return s
}

// Block returns the key without its group.
func (s StoredKey) Block() BlockKey { return BlockKey(s[:16]) }

// Group returns the KV cache group.
func (s StoredKey) Group() uint32 { return binary.BigEndian.Uint32(s[16:]) }

// String returns the block key, a colon and the group in decimal.
func (s StoredKey) String() string { return fmt.Sprintf("%s:%d", s.Block(), s.Group()) }

// ExtraKind says what an Extra identifies. The numbers are part of the key
// encoding and never change.
type ExtraKind uint8

const (
	// ExtraMultimodal is an image, audio or video object; Data is its identifier.
	ExtraMultimodal ExtraKind = 1
	// ExtraPromptEmbeds is a piece of prompt embeddings; Data is its digest.
	ExtraPromptEmbeds ExtraKind = 2
)

// Extra is an input other than a token that changes the KV of a block.
type Extra struct {
	Kind ExtraKind
	// Offset is where the input starts, in tokens, relative to the block.
	Offset uint32
	Data   []byte
}

// Keyer computes BlockKeys without an allocation per block. A Keyer is for one
// goroutine. Make one with NewKeyer.
type Keyer struct {
	sum hash.Hash
	buf []byte
	out [sha256.Size]byte
}

// NewKeyer returns a ready Keyer.
func NewKeyer() *Keyer { return &Keyer{sum: sha256.New()} }

// Root returns key_0 of a request in namespace ns.
func (k *Keyer) Root(ns NamespaceID, lora, salt string) BlockKey {
	k.buf = append(k.buf[:0], ns[:]...)
	k.buf = appendLengthPrefixed(k.buf, lora)
	k.buf = appendLengthPrefixed(k.buf, salt)
	return k.finish()
}

// Next returns the key of the block that follows the block parent and has these tokens and extras
// (the content beside tokens). len(tokens) must be the namespace's block size. Stored blocks have
// their keys from these bytes, so the order must not change.
func (k *Keyer) Next(parent BlockKey, tokens []uint32, extras []Extra) BlockKey {
	k.buf = append(k.buf[:0], parent[:]...)
	for _, t := range tokens {
		k.buf = binary.LittleEndian.AppendUint32(k.buf, t)
	}
	for _, e := range extras {
		k.buf = append(k.buf, byte(e.Kind))
		k.buf = binary.LittleEndian.AppendUint32(k.buf, e.Offset)
		k.buf = binary.LittleEndian.AppendUint32(k.buf, uint32(len(e.Data)))
		k.buf = append(k.buf, e.Data...)
	}
	return k.finish()
}

func (k *Keyer) finish() BlockKey {
	k.sum.Reset()
	k.sum.Write(k.buf)
	k.sum.Sum(k.out[:0])
	return BlockKey(k.out[:16])
}

func appendLengthPrefixed(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}
