package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Bounds of the received chunks that wait to be read, and of the wait for a chunk.
const (
	maxPendingChunks = 1 << 16
	maxPendingBytes  = 1 << 29
	chunkTimeout     = 5 * time.Second
)

// windowChunks is how many chunks of an answer may be in flight. The NATS server buffers
// them. The server ends a connection with more than 64 MiB of buffered messages. Package
// feed bounds the sum over all answers.
const windowChunks = 8

// errDisconnected ends the queries of a lost connection.
var errDisconnected = errors.New("the nats connection was lost")

// Query sends q to a publisher and returns the whole answer; it implements source.Transport. A dump
// comes in chunks. Query requests a bounded number of them at a time (a window). A publisher that
// knows no windows sends them all at once. After an error the answer has the chunks that came, or
// is nil. A lost connection ends the query.
func (n *Source) Query(ctx context.Context, publisher uint64, q kvevent.QueryRequest) (*source.Answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(n.connectionContext(), func() { cancel(errDisconnected) })()
	inbox := n.conn.NewInbox()
	sub, err := n.conn.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("query publisher %016x: %w", publisher, err)
	}
	defer func() {
		if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			n.log.Warn("subscription to an answer does not end", zap.Error(err))
		}
	}()
	if err := sub.SetPendingLimits(maxPendingChunks, maxPendingBytes); err != nil {
		return nil, fmt.Errorf("query publisher %016x: %w", publisher, err)
	}
	w := window{conn: n.conn, subject: kvevent.QuerySubject(n.cluster, publisher), inbox: inbox}
	if err := w.open(q); err != nil {
		return nil, fmt.Errorf("query publisher %016x: %w", publisher, err)
	}
	a := source.NewAssembly(publisher, &q)
	for done := false; !done; {
		reply, err := nextChunk(ctx, sub)
		if err == nil {
			done, err = a.Add(&reply)
		}
		if err == nil && !done {
			err = w.advance(a.Answer())
		}
		if err != nil {
			return a.Partial(), fmt.Errorf("query publisher %016x, chunk %d: %w", publisher, a.Answer().NextChunk, err)
		}
	}
	return a.Answer(), nil
}

// window requests the chunks of one answer as they are read.
type window struct {
	conn           *nats.Conn
	subject, inbox string
	// requested is the end of the requested chunks: the first chunk that is not requested.
	requested uint32
}

// Hint implements source.Hinter. Agents that take no hints ignore it.
func (n *Source) Hint(_ context.Context, publisher uint64, data []byte) error {
	if err := n.conn.Publish(kvevent.ReadAheadSubject(n.cluster, publisher), data); err != nil {
		return fmt.Errorf("read-ahead hint to publisher %016x: %w", publisher, err)
	}
	return nil
}

// AskAnnouncements implements source.Asker.
func (n *Source) AskAnnouncements(_ int, agent uint64) error {
	if err := n.conn.Publish(kvevent.AnnounceAskSubject(n.cluster, agent), nil); err != nil {
		return fmt.Errorf("ask agent %016x for announcements: %w", agent, err)
	}
	return nil
}

// open requests the first chunks.
func (w *window) open(q kvevent.QueryRequest) error {
	q.MaxChunks = windowChunks
	return w.conn.PublishRequest(w.subject, w.inbox, kvevent.AppendQueryRequest(nil, &q))
}

// advance requests more chunks of answer a once half of the window has come. The publisher sends
// them to the same inbox.
func (w *window) advance(a *source.Answer) error {
	if a.DumpID == 0 { // an answer without parts: all chunks come unasked
		return nil
	}
	w.requested = max(w.requested, a.FirstChunk+windowChunks)
	if w.requested-a.NextChunk > windowChunks/2 {
		return nil
	}
	q := kvevent.QueryRequest{DumpID: a.DumpID, FirstChunk: w.requested, MaxChunks: windowChunks / 2}
	w.requested += windowChunks / 2
	return w.conn.PublishRequest(w.subject, w.inbox, kvevent.AppendQueryRequest(nil, &q))
}

// nextChunk waits for a chunk, at most chunkTimeout, and decodes it. When ctx ends, the error is its
// cause.
func nextChunk(ctx context.Context, sub *nats.Subscription) (kvevent.QueryReply, error) {
	chunkCtx, cancel := context.WithTimeout(ctx, chunkTimeout)
	defer cancel()
	m, err := sub.NextMsgWithContext(chunkCtx)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return kvevent.QueryReply{}, err
	}
	return kvevent.DecodeQueryReply(m.Data)
}
