package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Bounds of one answer's chunks that wait to be read, and of the silence
// between two of them.
const (
	maxPendingChunks = 1 << 16
	maxPendingBytes  = 1 << 29
	chunkTimeout     = 5 * time.Second
)

// Query is the Transport's.
func (n *NATS) Query(ctx context.Context, publisher uint64, q kvevent.QueryRequest) (*Answer, error) {
	inbox := n.conn.NewInbox()
	sub, err := n.conn.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("query publisher %016x: %w", publisher, err)
	}
	defer func() {
		if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			n.log.Warn("unsubscribe from an answer", zap.Error(err))
		}
	}()
	if err := sub.SetPendingLimits(maxPendingChunks, maxPendingBytes); err != nil {
		return nil, fmt.Errorf("query publisher %016x: %w", publisher, err)
	}
	subject := kvevent.QuerySubject(n.cluster, publisher)
	if err := n.conn.PublishRequest(subject, inbox, kvevent.AppendQueryRequest(nil, &q)); err != nil {
		return nil, fmt.Errorf("query publisher %016x: %w", publisher, err)
	}
	a := assembly{publisher: publisher}
	for done := false; !done; {
		reply, err := nextChunk(ctx, sub)
		if err == nil {
			done, err = a.add(&reply)
		}
		if err != nil {
			return nil, fmt.Errorf("query publisher %016x, chunk %d: %w", publisher, a.chunks, err)
		}
	}
	return &a.answer, nil
}

func nextChunk(ctx context.Context, sub *nats.Subscription) (kvevent.QueryReply, error) {
	ctx, cancel := context.WithTimeout(ctx, chunkTimeout)
	defer cancel()
	m, err := sub.NextMsgWithContext(ctx)
	if err != nil {
		return kvevent.QueryReply{}, err
	}
	return kvevent.DecodeQueryReply(m.Data)
}
