package router

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
	Stats() TransportStats
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

// TransportStats are a transport's gauges and counters.
type TransportStats struct {
	Connected bool
	// Dropped counts frames lost because the router was too slow.
	Dropped uint64
	// Reconnects counts connections after the first.
	Reconnects uint64
	// StreamFailures counts tries to read from the stream that failed.
	StreamFailures uint64
	// SnapshotBytes is the size of the last snapshot saved.
	SnapshotBytes uint64
}

// Answer is a publisher's whole answer to a query, or the chunks of it from
// FirstChunk to before NextChunk; see kvevent.QueryReply.
type Answer struct {
	Kind        kvevent.QueryKind
	LastEventID uint64
	Message     string
	Events      []kvevent.RouterEvent
	// DumpID names a dump whose other chunks can be asked for; 0 for any other answer.
	DumpID                uint64
	FirstChunk, NextChunk uint32
}

// extend appends the rest of a dump, or becomes next when that is another answer.
func (a *Answer) extend(next *Answer) {
	if a.DumpID == 0 || next.DumpID != a.DumpID || next.FirstChunk != a.NextChunk {
		*a = *next
		return
	}
	a.Events = append(a.Events, next.Events...)
	a.NextChunk = next.NextChunk
}

// maxAnswerBlocks bounds the memory of one answer; see answerSize.
const maxAnswerBlocks = 1 << 26

// answerSize is how many blocks and events there are: an event without blocks takes
// memory too.
func answerSize(events []kvevent.RouterEvent) int {
	size := len(events)
	for i := range events {
		size += events[i].NumBlocks()
	}
	return size
}

// assembly puts the chunks of an answer together.
type assembly struct {
	publisher uint64
	// resume is the dump whose rest is wanted, from chunk first on; 0 for none.
	resume uint64
	first  uint32

	answer Answer
	chunks uint32
	size   int
}

// add takes in the next chunk and reports whether it was the last one. A chunk
// out of order, or not of this answer, is an error; the answer holds what came
// before it. Instead of the rest of a dump another answer may come.
func (a *assembly) add(r *kvevent.QueryReply) (done bool, err error) {
	if a.chunks == 0 {
		a.answer = Answer{Kind: r.Kind, DumpID: r.DumpID}
		if a.resume != 0 && r.DumpID == a.resume {
			a.answer.FirstChunk, a.answer.NextChunk = a.first, a.first
		}
	}
	switch {
	case r.PublisherID != a.publisher:
		return false, fmt.Errorf("answer chunk %d: publisher %016x, want %016x", r.Chunk, r.PublisherID, a.publisher)
	case r.DumpID != a.answer.DumpID:
		return false, fmt.Errorf("answer chunk %d: dump %d, want dump %d", r.Chunk, r.DumpID, a.answer.DumpID)
	case r.Chunk != a.answer.NextChunk:
		return false, fmt.Errorf("answer chunk %d: want chunk %d", r.Chunk, a.answer.NextChunk)
	case r.Kind != a.answer.Kind:
		return false, fmt.Errorf("answer chunk %d: kind %q after %q", r.Chunk, r.Kind, a.answer.Kind)
	}
	if a.size += answerSize(r.Events); a.size > maxAnswerBlocks {
		return false, fmt.Errorf("answer chunk %d: more than %d blocks and events", r.Chunk, maxAnswerBlocks)
	}
	a.chunks++
	a.answer.NextChunk++
	a.answer.LastEventID, a.answer.Message = r.LastEventID, r.Message
	a.answer.Events = append(a.answer.Events, r.Events...)
	return r.Final, nil
}

// partial is what came of an answer that was cut, if the rest can be asked for.
func (a *assembly) partial() *Answer {
	if a.chunks == 0 || a.answer.DumpID == 0 {
		return nil
	}
	return &a.answer
}
