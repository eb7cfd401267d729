package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/blockyard-ai/blockyard/blockmgr/storage/extent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Extent encrypts the slots of one extent. It implements extent.Cipher.
type Extent struct {
	namespace kv.NamespaceID
	aead      cipher.AEAD
}

var _ extent.Cipher = (*Extent)(nil)

// Extent returns the cipher of an extent of a namespace. No other extent of the arena ever has the id.
func (a *Arena) Extent(ns kv.NamespaceID, id uint32) (*Extent, error) {
	info := binary.LittleEndian.AppendUint32([]byte(extentInfo), id)
	key, err := hkdf.Expand(sha256.New, a.secret, string(info), KeyBytes)
	if err != nil {
		return nil, fmt.Errorf("key of a disk extent: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("key of a disk extent: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("key of a disk extent: %w", err)
	}
	return &Extent{namespace: ns, aead: aead}, nil
}

// Seal implements extent.Cipher: nonce, cipher text and tag are at the start of sealed, zeros behind them.
func (e *Extent) Seal(sealed, slot []byte, i uint32, life extent.Life) {
	ad := e.bind(i, life)
	out := e.aead.Seal(sealed[:0], nil, slot, ad[:])
	clear(sealed[len(out):])
}

// Open implements extent.Cipher.
func (e *Extent) Open(slot, sealed []byte, i uint32, life extent.Life) error {
	ad := e.bind(i, life)
	if _, err := e.aead.Open(slot[:0:len(slot)], nil, sealed[:len(slot)+e.aead.Overhead()], ad[:]); err != nil {
		return fmt.Errorf("slot %d, block %s, generation %d: %w", i, life.Key, life.Generation, extent.ErrForged)
	}
	return nil
}

// bind returns the associated data of a slot: what the bytes are, and where they belong. The extent is in
// the key.
func (e *Extent) bind(i uint32, life extent.Life) (ad [16 + 20 + 8 + 4]byte) {
	copy(ad[:], e.namespace[:])
	copy(ad[16:], life.Key[:])
	binary.LittleEndian.PutUint64(ad[36:], life.Generation)
	binary.LittleEndian.PutUint32(ad[44:], i)
	return ad
}
