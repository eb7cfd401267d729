package publisher

import (
	"iter"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Upper bounds of encoded sizes in bytes.
const (
	envelopeBytes = 256
	eventBytes    = 256
	storedBytes   = 64
	removedBytes  = 9
)

// Budget is the room that is left in one message. A message that was filled within its
// budget is within the limits of kvevent and within maxBytes when it is encoded.
type Budget struct {
	events, blocks, bytes int
	used                  bool
}

// NewBudget returns the budget of an empty message of at most maxBytes.
func NewBudget(maxBytes int) Budget {
	return Budget{
		events: kvevent.MaxEventsPerMessage,
		blocks: kvevent.MaxBlocksPerMessage,
		bytes:  maxBytes - envelopeBytes,
	}
}

// Take makes e part of the message; false when e does not fit. The first event always
// fits.
func (b *Budget) Take(e *kvevent.RouterEvent) bool {
	size := eventBytes + storedBytes*len(e.Blocks) + removedBytes*len(e.Removed)
	if b.used && (b.events < 1 || b.blocks < e.NumBlocks() || b.bytes < size) {
		return false
	}
	b.used = true
	b.events--
	b.blocks -= e.NumBlocks()
	b.bytes -= size
	return true
}

// MessageLen returns how many of events fit into one message of at most maxBytes.
func MessageLen(events []kvevent.RouterEvent, maxBytes int) int {
	left := NewBudget(maxBytes)
	for i := range events {
		if !left.Take(&events[i]) {
			return i
		}
	}
	return len(events)
}

// Chunks yields an answer in messages of at most maxBytes. Each of them is r itself
// with the next events, the number of the chunk, and whether it is the final one.
func Chunks(r *kvevent.QueryReply, events []kvevent.RouterEvent, maxBytes int) iter.Seq[*kvevent.QueryReply] {
	return func(yield func(*kvevent.QueryReply) bool) {
		for !r.Final {
			n := MessageLen(events, maxBytes)
			r.Events, events = events[:n], events[n:]
			r.Final = len(events) == 0
			if !yield(r) {
				return
			}
			r.Chunk++
		}
	}
}

// A reader is sent paceRate bytes a second at most after the first paceBurst. A NATS
// server hangs up on a client that does not take its messages. By default it keeps 64 MB of
// messages for each client.
const (
	paceRate  = 100 << 20
	paceBurst = 32 << 20
)

// Pace slows the sending of a whole state, so that its readers can keep up.
type Pace struct {
	began time.Time
	sent  int
}

// NewPace returns the pace of a state whose sending begins now.
func NewPace(now time.Time) Pace { return Pace{began: now} }

// Sent notes that bytes were sent.
func (p *Pace) Sent(bytes int) { p.sent += bytes }

// Pause returns how long to wait before more is sent; 0 or less is not at all.
func (p *Pace) Pause(now time.Time) time.Duration {
	return time.Duration(float64(p.sent-paceBurst)/paceRate*float64(time.Second)) - now.Sub(p.began)
}
