package publisher

import (
	"errors"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// ErrClosed is the error of using a publisher or a feed after its Close.
var ErrClosed = errors.New("publisher is closed")

// Status is a source at one moment.
type Status = kvevent.Status

// Source is the interface of publishers to a stream. A publisher calls its methods without a
// lock of its own. Status and Snapshot give pending events to Publish before they
// return. *residency.Stream and *residency.Merged of package consolidator/residency are
// Sources.
type Source interface {
	Owner() kv.Owner
	Status() Status
	// Snapshot returns the owner's state as stored events, parents before children, with
	// the id of the last event in it and Sum of the status after that event.
	Snapshot() (events []kvevent.RouterEvent, last, digest uint64)
}

// Meta has the constant fields of announcements; see kvevent.Announcement.
type Meta struct {
	Pool      uint64
	Namespace kv.NamespaceID
	Model     string
	BlockSize uint32
	Card      kvevent.ModelCard
}

// Alarm wakes one goroutine. Several calls of Raise wake it once if it has not received in
// between.
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
