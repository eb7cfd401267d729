package extent

import (
	"errors"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// SealBytes is the room behind each slot of an encrypted disk extent for what a Cipher adds: a page, so that
// slots stay aligned for O_DIRECT.
const SealBytes = PageSize

// ErrForged means that the bytes of a slot are not those that were sealed for it.
var ErrForged = errors.New("sealed bytes are not authentic")

// Life names one life of a slot: the block that is in the slot, and the slot's generation.
type Life struct {
	Key        kv.StoredKey
	Generation uint64
}

// Cipher encrypts the slots of one disk extent on their way to the disk. All methods are safe for concurrent
// use.
type Cipher interface {
	// Seal encrypts a slot of an extent for one life into sealed, which is SealBytes longer.
	Seal(sealed, slot []byte, i uint32, life Life)
	// Open is the reverse of Seal. ErrForged: sealed is not what Seal made for the same slot and life; the
	// bytes of slot are undefined then.
	Open(slot, sealed []byte, i uint32, life Life) error
}

// sealedBuffers are the buffers for encrypted slots that no read or write uses.
var sealedBuffers sync.Pool

// sealedBuffer returns n bytes of page-aligned memory. The caller calls releaseSealed when nothing uses them.
func sealedBuffer(n uint64) []byte {
	if b, ok := sealedBuffers.Get().(*[]byte); ok && uint64(cap(*b)) >= n {
		return (*b)[:n]
	}
	return AlignedBytes(int(n))
}

func releaseSealed(b []byte) { sealedBuffers.Put(&b) }

// Fetched is a slot that was read from the disk and is not decrypted yet. The zero value is that of a disk
// without a cipher.
type Fetched struct {
	disk   *Disk
	slot   uint32
	sealed []byte
}

// Open decrypts the slot into p, the memory that Fetch was called with. ErrForged: the slot's bytes are not
// those of the life; ErrMemory: p cannot be written. It is called once.
func (f Fetched) Open(p []byte, life Life) error {
	if f.sealed == nil { // Fetch has read the bytes into p
		return nil
	}
	defer releaseSealed(f.sealed)
	var forged error
	if err := Guard(func() { forged = f.disk.cipher.Open(p, f.sealed, f.slot, life) }); err != nil {
		return err
	}
	return forged
}
