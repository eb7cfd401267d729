package dynamo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const (
	dialTimeout = 5 * time.Second
	// replyTimeout bounds the sending of an answer, lingerTimeout the wait for its
	// reader to close.
	replyTimeout  = time.Minute
	lingerTimeout = 5 * time.Second
	// maxLinger bounds what a reader may send back; it is not looked at.
	maxLinger = 1 << 20
)

// reply answers a request on a connection of its own.
func (r *recovery) reply(s *Source, q *request) error {
	ctx, cancel := context.WithTimeout(r.ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", q.address)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(r.ctx, func() { _ = c.Close() })()
	_ = c.SetDeadline(time.Now().Add(replyTimeout))
	handshake, err := json.Marshal(struct {
		Subject string `json:"subject"`
		Stream  string `json:"stream_type"`
	}{q.subject, "response"})
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	head := appendTwoPart(nil, handshake, nil)
	head = appendTwoPart(head, []byte(`{"error":null}`), nil)
	if _, err := c.Write(head); err != nil {
		return err
	}
	item := s.answer(&q.query)
	body := appendTwoPart(nil, nil, item)
	body = appendTwoPart(body, nil, kvevent.AppendDynamoFinal(nil))
	if _, err := c.Write(body); err != nil {
		return err
	}
	// The router has its answer and may close before it reads this.
	if _, err := c.Write(appendTwoPart(nil, []byte(`"sentinel"`), nil)); err != nil {
		return nil
	}
	linger(c)
	return nil
}

// linger waits for the reader to close, so that what it has sent does not reset the
// connection before it has read everything.
func linger(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok && t.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(lingerTimeout))
		_, _ = io.CopyN(io.Discard, c, maxLinger)
	}
}
