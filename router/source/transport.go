package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// FrameKind is the kind of a Frame.
type FrameKind uint8

const (
	// FrameEvents carries an encoded kvevent.Envelope.
	FrameEvents FrameKind = iota + 1
	// FrameAnnouncement carries an encoded kvevent.Announcement.
	FrameAnnouncement
	// FrameDisconnected: from now on the frame's source brings nothing, or only old
	// messages, for reasons other than its publishers. FrameConnected: the outage is over.
	// Messages sent in between may be lost.
	FrameDisconnected
	FrameConnected
)

// FrameLoad carries an encoded kvevent.LoadReport.
const FrameLoad FrameKind = 16

// Frame is one message that a Transport received. Its receiver owns Data.
type Frame struct {
	Kind FrameKind
	Data []byte
	// Position is the position of the message in a stream that keeps messages, from 1; 0
	// without such a stream.
	Position uint64
	// Age is how long the stream had kept the message; 0 without one.
	Age time.Duration
	// Source numbers the transports that a registry joins, from 1. 0 is a transport used
	// alone, and an announcement of the registry itself.
	Source int
}

// Transport brings the messages of all publishers and takes questions to them.
type Transport interface {
	// Frames delivers messages. The messages of one publisher keep their order, events
	// and announcements together. Frames that the receiver was too slow for are dropped.
	// The channel is never closed.
	Frames() <-chan Frame
	// Query asks a publisher and waits for the whole answer. It is safe for concurrent
	// use. An answer beside an error is the beginning of a dump that broke off; a query
	// with its DumpID gets the rest.
	Query(ctx context.Context, publisher uint64, q kvevent.QueryRequest) (*Answer, error)
	// Stats returns the gauges and counters.
	Stats() Stats
}

// Resumer is a Transport that reads a stream of kept messages.
type Resumer interface {
	// Resume begins to deliver the messages after a position of an earlier connection.
	// After position 0 come the messages that are sent from now on. Resume is called
	// once; nothing is delivered before.
	Resume(position uint64)
}

// ErrNoSnapshot: no snapshot is stored.
var ErrNoSnapshot = errors.New("there is no snapshot")

// SnapshotSaveTimeout bounds the time to save one snapshot.
const SnapshotSaveTimeout = 2 * time.Minute

// SnapshotStore keeps the last snapshot of a cluster's routers.
type SnapshotStore interface {
	// SaveSnapshot stores what write writes, once write returns nil. Until then, and
	// after an error, the previous snapshot stays. It returns soon after the end of ctx.
	SaveSnapshot(ctx context.Context, write func(io.Writer) error) error
	// LoadSnapshot passes the snapshot to read. The error is ErrNoSnapshot, the one of
	// read, or says that the snapshot is damaged.
	LoadSnapshot(ctx context.Context, read func(io.Reader) error) error
	// ForgetSnapshot deletes the snapshot, if there is one.
	ForgetSnapshot(ctx context.Context) error
}

// Stats is a snapshot of a transport. The metric names follow "blockyard_router_".
type Stats struct {
	Connected      bool   `metric:"transport_connected" help:"1 while the event transport is connected."`
	Dropped        uint64 `metric:"transport_dropped" help:"Messages lost because the router was too slow."`
	Reconnects     uint64 `metric:"transport_reconnects" help:"Connections after the first."`
	StreamFailures uint64 `metric:"stream_failures" help:"Failed reads of the event stream."`
	// SnapshotBytes is the size of the last saved snapshot.
	SnapshotBytes uint64 `metric:"-"`
}

// PublisherName returns a publisher's id as errors, logs and JSON show it.
func PublisherName(id uint64) string { return fmt.Sprintf("%016x", id) }

// Sources of workers without a publisher, in kvevent.ModelCard.Source.
const (
	FromFile = "file"
	FromHTTP = "http"
)

// IsRegistered reports whether an announcement is of a registered worker: one of a file
// or a registration, without a publisher.
func IsRegistered(a *kvevent.Announcement) bool {
	return a.Card.Silent && (a.Card.Source == FromFile || a.Card.Source == FromHTTP)
}

// Joiner is a Transport that joins others.
type Joiner interface {
	// Announced tells whether the router accepted an announcement of a source. It must
	// not wait for the router.
	Announced(source int, a *kvevent.Announcement, taken bool)
	// SnapshotSource returns the source whose stream positions snapshots have; 0 without
	// one.
	SnapshotSource() int
}

// Metrics are the counters and gauges of a transport beyond Stats, under names in snake
// case.
type Metrics struct {
	// Name is the transport's, such as "dynamo".
	Name     string            `json:"name"`
	Counters map[string]uint64 `json:"counters"`
	Gauges   map[string]uint64 `json:"gauges"`
}

// Measured is a Transport with Metrics. Each name is in them once.
type Measured interface {
	Metrics() []Metrics
}
