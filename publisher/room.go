package publisher

import "github.com/blockyard-ai/blockyard/internal/kvevent"

// Upper bounds of encoded sizes in bytes.
const (
	envelopeBytes = 256
	eventBytes    = 256
	storedBytes   = 64
	removedBytes  = 9
)

// room is what is left of one message.
type room struct {
	events, blocks, bytes int
	used                  bool
}

func newRoom(maxBytes int) room {
	return room{
		events: kvevent.MaxEventsPerMessage,
		blocks: kvevent.MaxBlocksPerMessage,
		bytes:  maxBytes - envelopeBytes,
	}
}

// take makes e part of the message, if it fits. The first event always does.
func (r *room) take(e *kvevent.RouterEvent) bool {
	size := eventBytes + storedBytes*len(e.Blocks) + removedBytes*len(e.Removed)
	fits := r.events >= 1 && r.blocks >= e.NumBlocks() && r.bytes >= size
	if r.used && !fits {
		return false
	}
	r.used = true
	r.events--
	r.blocks -= e.NumBlocks()
	r.bytes -= size
	return true
}
