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

// Budget is the unused room of one message. A message that is filled within its budget is, when
// encoded, within the limits of kvevent and within maxBytes.
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

// Take adds e to the message. It returns false when e does not fit. The first event always
// fits, because an event cannot be split here.
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

// MessageLen returns how many events, from the first one on, fit into one message of at most
// maxBytes.
func MessageLen(events []kvevent.RouterEvent, maxBytes int) int {
	left := NewBudget(maxBytes)
	for i := range events {
		if !left.Take(&events[i]) {
			return i
		}
	}
	return len(events)
}

// Chunks yields the messages of an answer to a query, each of at most maxBytes. Each message is
// r itself, with the next events, its chunk number, and Final in the last one. An answer
// without events is one message.
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

// Sent counts sent bytes.
func (p *Pace) Sent(bytes int) { p.sent += bytes }

// Pause returns the time to wait before the next message; 0 or less for none.
func (p *Pace) Pause(now time.Time) time.Duration {
	return time.Duration(float64(p.sent-paceBurst)/paceRate*float64(time.Second)) - now.Sub(p.began)
}
