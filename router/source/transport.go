package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// FrameKind says what a Frame is.
type FrameKind uint8

const (
	// FrameEvents carries an encoded kvevent.Envelope.
	FrameEvents FrameKind = iota + 1
	// FrameAnnouncement carries an encoded kvevent.Announcement.
	FrameAnnouncement
	// FrameDisconnected says that from now on nothing may arrive from the frame's
	// source, or only what is old, for reasons that have nothing to do with the
	// publishers; FrameConnected that it is over. What was sent in between may be
	// lost.
	FrameDisconnected
	FrameConnected
)

// FrameLoad carries an encoded kvevent.LoadReport.
const FrameLoad FrameKind = 16

// Frame is one message that a Transport received. Its receiver owns Data.
type Frame struct {
	Kind FrameKind
	Data []byte
	// Position is where the message lies among those that a durable transport
	// keeps, from 1; 0 when none does.
	Position uint64
	// Age is how long a durable transport had kept the message; 0 when none does.
	Age time.Duration
	// Source tells the transports that a Registry joins apart, from 1; 0 is a
	// transport used alone, and what a registry itself says.
	Source int
}

// Transport brings the messages of all publishers to a Router and its
// questions to them.
type Transport interface {
	// Frames delivers what arrives; the messages of one publisher stay in order,
	// events and announcements together. Frames that the receiver was too slow
	// for are missing. The channel is never closed.
	Frames() <-chan Frame
	// Query asks a publisher and waits for the whole answer. It may be called
	// from several goroutines. An answer that comes with an error is the beginning
	// of a dump that was cut; a query with its DumpID gets the rest.
	Query(ctx context.Context, publisher uint64, q kvevent.QueryRequest) (*Answer, error)
	// Stats is a snapshot of the counters.
	Stats() Stats
}

// Resumer is what a Transport implements besides that keeps messages.
type Resumer interface {
	// Resume lets messages come, those after a position: that of a frame of an
	// earlier connection. After position 0 come those that are sent from now on.
	// Nothing arrives before it is called, and it is called once.
	Resume(position uint64)
}

// ErrNoSnapshot: nothing was saved, or it was forgotten.
var ErrNoSnapshot = errors.New("there is no snapshot")

// SnapshotSaveTimeout bounds the time for saving one snapshot.
const SnapshotSaveTimeout = 2 * time.Minute

// SnapshotStore keeps the last snapshot of what routers know.
type SnapshotStore interface {
	// SaveSnapshot makes what write writes the snapshot, when write returns nil:
	// until then, and after an error, there is the former one, if any. It returns
	// soon after the end of ctx.
	SaveSnapshot(ctx context.Context, write func(io.Writer) error) error
	// LoadSnapshot has read read the snapshot. The error is ErrNoSnapshot, that of
	// read, or says that what was read is not what was saved.
	LoadSnapshot(ctx context.Context, read func(io.Reader) error) error
	// ForgetSnapshot deletes the snapshot; there may be none.
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

// PublisherName is a publisher's id as errors, logs and JSON show it.
func PublisherName(id uint64) string { return fmt.Sprintf("%016x", id) }

// Where a worker is known from that no publisher speaks for.
const (
	FromFile = "file"
	FromHTTP = "http"
)

// IsRegistered reports whether an announcement is of a worker that no publisher
// speaks for, of a file or of a registration. Without events every worker is silent.
func IsRegistered(a *kvevent.Announcement) bool {
	return a.Card.Silent && (a.Card.Source == FromFile || a.Card.Source == FromHTTP)
}

// Joiner is what a Transport implements besides that joins others.
type Joiner interface {
	// Announced is told whether the router has taken in an announcement of a source. It
	// must not wait for the router.
	Announced(source int, a *kvevent.Announcement, taken bool)
	// SnapshotSource is the source whose position the router resumes at; 0 without one.
	SnapshotSource() int
}

// SourceStats are what a transport counts that is not in TransportStats, under
// names in snake case.
type Metrics struct {
	// Name is the transport's, such as "dynamo".
	Name     string            `json:"name"`
	Counters map[string]uint64 `json:"counters"`
	Gauges   map[string]uint64 `json:"gauges"`
}

// SourceCounter is what a Transport implements besides that has SourceStats. Each
// name is there once.
type Measured interface {
	Metrics() []Metrics
}
