package publisher

import (
	"errors"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// ErrClosed is the error of using a publisher or a feed after its Close.
var ErrClosed = errors.New("publisher is closed")

// Status is a source at one moment; see residency.Status, to which it
// converts.
type Status struct {
	// LastEventID is the id of the newest event; 0 before the first.
	LastEventID uint64
	// Digest is the sum of kv.Digest over all resident (block, tier) pairs. Blocks is
	// the number of these pairs.
	Digest uint64
	Blocks uint64
	Health kvevent.Health
}

// Source is a stream as its publishers see it. A publisher calls its methods without a
// lock of its own. Status and Snapshot give pending events to Publish before they
// return.
type Source interface {
	Owner() kv.Owner
	Status() Status
	// Snapshot returns everything the owner holds as stored events, parents before
	// children, with the id of the last event in it and the digest.
	Snapshot() (events []kvevent.RouterEvent, last, digest uint64)
}

// Meta is what announcements say besides the status; see kvevent.Announcement.
type Meta struct {
	Pool      uint64
	Namespace kv.NamespaceID
	Model     string
	BlockSize uint32
	Card      kvevent.ModelCard
}

// Alarm wakes one goroutine. Alarms that are raised before the goroutine looks count
// as one.
type Alarm chan struct{}

// NewAlarm returns an alarm that was not raised.
func NewAlarm() Alarm { return make(Alarm, 1) }

// Raise wakes the goroutine that receives from the alarm. It never blocks.
func (a Alarm) Raise() {
	select {
	case a <- struct{}{}:
	default:
	}
}
