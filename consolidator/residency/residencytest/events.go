package residencytest

import (
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// BlockSize is how many tokens the blocks of StoredEvent have.
const BlockSize = 4

// StoredEvent is a chain of n blocks named from first on, after parent (0: none).
func StoredEvent(parent, first, n int) engineevent.Event {
	e := engineevent.Event{Kind: kvevent.Stored, BlockSize: BlockSize, Medium: "GPU", Group: engineevent.NoGroup}
	if parent > 0 {
		e.Parent, e.HasParent = kv.EngineHash(parent), true
	}
	for i := range n {
		e.BlockHashes = append(e.BlockHashes, kv.EngineHash(first+i))
		for j := range BlockSize {
			e.Tokens = append(e.Tokens, uint32((first+i)*BlockSize+j))
		}
	}
	return e
}

// RemovedEvent is the removal of blocks from the device.
func RemovedEvent(hashes ...int) engineevent.Event {
	e := engineevent.Event{Kind: kvevent.Removed, Medium: "GPU", Group: engineevent.NoGroup}
	for _, h := range hashes {
		e.BlockHashes = append(e.BlockHashes, kv.EngineHash(h))
	}
	return e
}
