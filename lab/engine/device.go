package engine

import "github.com/blockyard-ai/blockyard/internal/kv"

// device is the engine's device memory: blocks of equal size, side by side.
// Whoever holds a reference on a block may read it; only its first holder
// writes it, before the block becomes findable.
type device struct {
	mem        []byte
	blockBytes int
}

func newDevice(blocks, blockBytes int) device {
	return device{mem: make([]byte, blocks*blockBytes), blockBytes: blockBytes}
}

// bytes is the memory of block b.
func (d device) bytes(b int32) []byte {
	at := int(b) * d.blockBytes
	return d.mem[at : at+d.blockBytes : at+d.blockBytes]
}

// compute writes the KV that a forward pass would leave in block b.
func (d device) compute(b int32, key kv.BlockKey) { fillBlock(d.bytes(b), key) }
