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
	// FrameAnnouncement carries an encoded kvevent.Announcement or kvevent.AgentStatus.
	FrameAnnouncement
	// FrameDisconnected says that the frame's source delivers nothing or only old
	// messages from now on. Its publishers may still be alive. FrameConnected says that
	// the outage is over. Messages sent in between may be lost.
	FrameDisconnected
	FrameConnected
)

// FrameLoad carries an encoded kvevent.LoadReport.
const FrameLoad FrameKind = 16

// Frame is one message that a Transport received. Its receiver owns Data.
type Frame struct {
	Kind FrameKind
	Data []byte
	// Position is the position of the message in a stream that stores messages, from 1; 0
	// without such a stream.
	Position uint64
	// Age is how long the stream has stored the message; 0 without a stream.
	Age time.Duration
	// Source is the number of the transport in a registry, from 1. 0 marks a transport
	// used alone, and the registry's own announcements.
	Source int
}

// Transport delivers the messages of all publishers and sends queries to publishers.
type Transport interface {
	// Frames delivers messages. The events and announcements of one publisher keep their
	// order. A slow receiver loses frames. The channel is never closed.
	Frames() <-chan Frame
	// Query asks a publisher and waits for the whole answer. It is safe for concurrent
	// use. An answer with an error is the beginning of an interrupted dump. A query with
	// the answer's DumpID gets the rest.
	Query(ctx context.Context, publisher uint64, q kvevent.QueryRequest) (*Answer, error)
	// Stats returns the gauges and counters.
	Stats() Stats
}

// Hinter is a Transport that sends read-ahead hints.
type Hinter interface {
	// Hint sends an encoded kvevent.ReadAhead to the publisher of a pool. It waits until ctx ends at
	// most, and for no effect. ErrNoHints: the publisher can be sent none. Safe for concurrent use.
	Hint(ctx context.Context, publisher uint64, data []byte) error
}

// ErrNoHints says that a publisher takes no read-ahead hints, or is not known.
var ErrNoHints = errors.New("the publisher takes no read-ahead hints")

// Asker is a Transport that asks agents for announcements.
type Asker interface {
	// AskAnnouncements asks an agent for the announcements of all its publishers. from is the source of the
	// agent's frames. It waits for no answer. Safe for concurrent use.
	AskAnnouncements(from int, agent uint64) error
}

// ErrNoAsking says that the transport of an agent asks for no announcements.
var ErrNoAsking = errors.New("the source asks for no announcements")

// Resumer is a Transport that reads a stream of stored messages.
type Resumer interface {
	// Resume starts the delivery, after a position of an earlier connection. Position 0
	// delivers only messages sent from now on. Call Resume once: nothing is delivered
	// before.
	Resume(position uint64)
}

// ErrNoSnapshot says that no snapshot is stored.
var ErrNoSnapshot = errors.New("there is no snapshot")

// SnapshotSaveTimeout bounds the time to save a snapshot of some bytes.
func SnapshotSaveTimeout(size uint64) time.Duration {
	const leastRate = 16 << 20 // bytes a second
	return 2*time.Minute + time.Duration(min(size, 1<<44)/leastRate)*time.Second
}

// SnapshotStore keeps the last snapshot of a cluster's routers.
type SnapshotStore interface {
	// SaveSnapshot stores the bytes of write, about size of them, once write returns nil. Until
	// then, and after an error, the previous snapshot stays. SaveSnapshot returns soon after the
	// end of ctx.
	SaveSnapshot(ctx context.Context, size uint64, write func(io.Writer) error) error
	// LoadSnapshot passes the snapshot to read. When the snapshot is replaced meanwhile, it calls read again with
	// the new one. The error is ErrNoSnapshot, the error of read, or says that the snapshot is damaged.
	LoadSnapshot(ctx context.Context, read func(io.Reader) error) error
	// ForgetSnapshot deletes the snapshot, if there is one.
	ForgetSnapshot(ctx context.Context) error
}

// Stats is a snapshot of a transport. The metric names follow "blockyard_router_".
type Stats struct {
	Connected             bool   `metric:"transport_connected" help:"1 while the event transport is connected."`
	Dropped               uint64 `metric:"transport_dropped" help:"Messages lost because the router was too slow."`
	Reconnects            uint64 `metric:"transport_reconnects" help:"Connections after the first."`
	StreamFailures        uint64 `metric:"stream_failures" help:"Failed reads of the event stream."`
	SnapshotReplacements  uint64 `metric:"snapshot_replacements" help:"Snapshot loads that began again because another router had replaced the snapshot."`
	SnapshotBucketLimited uint64 `metric:"snapshot_bucket_limited" help:"Snapshot saves for which the NATS server had less room than the router asked for."`
	// SnapshotBytes is the size of the last saved snapshot.
	SnapshotBytes uint64 `metric:"-"`
}

// PublisherName formats a publisher's id for errors, logs and JSON.
func PublisherName(id uint64) string { return fmt.Sprintf("%016x", id) }

// Sources of workers without a publisher, in kvevent.ModelCard.Source.
const (
	FromFile = "file"
	FromHTTP = "http"
)

// IsRegistered reports whether an announcement is of a registered worker. A registered
// worker comes from a file or a registration and has no publisher.
func IsRegistered(a *kvevent.Announcement) bool {
	return a.Card.Silent && (a.Card.Source == FromFile || a.Card.Source == FromHTTP)
}

// Joiner is a Transport that joins others.
type Joiner interface {
	// Announced tells the Joiner whether the router accepted an announcement of a source.
	// It must not wait for the router.
	Announced(source int, a *kvevent.Announcement, accepted bool)
	// SnapshotSource returns the number of the source whose stream positions the
	// snapshots record; 0 without such a source.
	SnapshotSource() int
}

// Metrics are further counters and gauges of a transport. Their names are in snake case.
type Metrics struct {
	// Name is the name of the transport, such as "dynamo".
	Name     string            `json:"name"`
	Counters map[string]uint64 `json:"counters"`
	Gauges   map[string]uint64 `json:"gauges"`
}

// Measured is a Transport with Metrics. Each Name occurs once.
type Measured interface {
	Metrics() []Metrics
}

// AnswerError is the error in an answer: the answering side has the request and refuses it.
type AnswerError string

// Error implements error. It returns the text of the answering side.
func (e AnswerError) Error() string { return string(e) }
