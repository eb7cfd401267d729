package dynamo

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Bounds of one request.
const (
	dialTimeout    = 3 * time.Second
	answerTimeout  = 30 * time.Second
	maxAnswer      = 1 << 28 // bytes of one message of an answer
	maxRefusal     = 1 << 12 // bytes of an acknowledgement
	maxConnections = 8       // connections to the return address
)

// queryTarget sends a query to a recovery target over Dynamo's TCP request plane, and waits
// for the answer. The target acknowledges the request on the same connection. It sends the
// answer over a connection to the return address in the request. The return address is the
// local address of the first connection with a port of its own.
func queryTarget(ctx context.Context, t target, q *kvevent.DynamoQuery) (*kvevent.QueryReply, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", t.address)
	if err != nil {
		return nil, fmt.Errorf("recovery target %s: %w", t, err)
	}
	defer conn.Close()
	local, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		return nil, fmt.Errorf("recovery target %s: %w", t, err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(local, "0"))
	if err != nil {
		return nil, fmt.Errorf("recovery target %s: return address: %w", t, err)
	}
	defer listener.Close()
	// Closing both ends a blocked read or accept.
	stop := context.AfterFunc(ctx, func() {
		conn.Close()
		listener.Close()
	})
	defer stop()
	subject := rand.Text()
	frame, err := requestFrame(t.path, listener.Addr().String(), subject, kvevent.AppendDynamoQuery(nil, q))
	if err == nil {
		_, err = conn.Write(frame)
	}
	if err == nil {
		err = acknowledgement(conn)
	}
	if err != nil {
		return nil, fmt.Errorf("recovery target %s: %w", t, errors.Join(err, ctx.Err()))
	}
	a, err := acceptAnswer(ctx, listener, subject)
	if err != nil {
		return nil, fmt.Errorf("recovery target %s: answer: %w", t, errors.Join(err, ctx.Err()))
	}
	return a, nil
}

// requestFrame encodes a request: path, headers and payload, each after its length. The payload is
// a two-part message of a control header and the query. The target sends the answer to
// returnAddress, and begins with subject.
func requestFrame(path, returnAddress, subject string, query []byte) ([]byte, error) {
	id := rand.Text()
	headers, err := json.Marshal(map[string]string{
		"x-frontend-send-ts-ns": strconv.FormatInt(time.Now().UnixNano(), 10),
		"x-endpoint-path":       path,
		"request-id":            id,
	})
	if err != nil {
		return nil, err
	}
	info, err := json.Marshal(map[string]string{"address": returnAddress, "subject": subject, "context": id, "stream_type": "response"})
	if err != nil {
		return nil, err
	}
	control, err := json.Marshal(map[string]any{
		"id": id, "request_type": "single_in", "response_type": "many_out", "payload_codec": "msgpack",
		"connection_info": map[string]string{"transport": "tcp_server", "info": string(info)},
	})
	if err != nil {
		return nil, err
	}
	if len(path) > 1<<12 {
		return nil, fmt.Errorf("path: %d bytes are more than %d", len(path), 1<<12)
	}
	payload := appendTwoPart(nil, control, query)
	b := binary.BigEndian.AppendUint16(nil, uint16(len(path)))
	b = append(b, path...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(headers)))
	b = append(b, headers...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...), nil
}

// appendTwoPart appends a message of header and body with their lengths and a checksum;
// checksum 0 means none.
func appendTwoPart(dst, header, body []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(len(header)))
	dst = binary.BigEndian.AppendUint64(dst, uint64(len(body)))
	dst = binary.BigEndian.AppendUint64(dst, 0)
	return append(append(dst, header...), body...)
}

// readTwoPart reads a two-part message of Dynamo's request plane: the lengths of header and body
// and a checksum that is not used, 8 bytes each, then both parts. A message of more than
// maxAnswer bytes is an error.
func readTwoPart(r io.Reader) (header, body []byte, err error) {
	var sizes [24]byte
	if _, err := io.ReadFull(r, sizes[:]); err != nil {
		return nil, nil, err
	}
	h, b := binary.BigEndian.Uint64(sizes[:]), binary.BigEndian.Uint64(sizes[8:])
	if h > maxAnswer || b > maxAnswer || h+b > maxAnswer {
		return nil, nil, fmt.Errorf("message of %d and %d bytes: more than %d", h, b, maxAnswer)
	}
	// Memory grows with the bytes that came, not with the announced length.
	both, err := io.ReadAll(io.LimitReader(r, int64(h+b)))
	if err == nil && uint64(len(both)) < h+b {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, nil, err
	}
	return both[:h], both[h:], nil
}

// acknowledgement reads the acknowledgement of a request: the length and text of a refusal.
// A length of 0 accepts the request.
func acknowledgement(r io.Reader) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return fmt.Errorf("acknowledgement: %w", err)
	}
	n := binary.BigEndian.Uint32(size[:])
	if n == 0 {
		return nil
	}
	text := make([]byte, min(n, maxRefusal))
	if _, err := io.ReadFull(r, text); err != nil {
		return fmt.Errorf("acknowledgement: %w", err)
	}
	return fmt.Errorf("refused: %q", text)
}

// errOtherConnection says that a connection to the return address does not bring the answer.
var errOtherConnection = errors.New("not the answer's connection")

// acceptAnswer waits for the target's connection and reads the answer from it. A connection that
// does not begin with subject is somebody else's and is closed; maxConnections of them are an
// error.
func acceptAnswer(ctx context.Context, listener net.Listener, subject string) (*kvevent.QueryReply, error) {
	for range maxConnections {
		conn, err := listener.Accept()
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		a, err := readAnswer(conn, subject)
		stop()
		conn.Close()
		if !errors.Is(err, errOtherConnection) {
			return a, err
		}
	}
	return nil, fmt.Errorf("%d connections: %w", maxConnections, errOtherConnection)
}

// readAnswer reads the answer to a query from a connection that the queried worker has made to the
// return address. Dynamo's response stream has two-part messages: the subject of the request, a
// prologue, which may refuse the request, and the answer. A connection with another subject is
// errOtherConnection.
func readAnswer(r io.Reader, subject string) (*kvevent.QueryReply, error) {
	header, _, err := readTwoPart(r)
	var caller struct {
		Subject string `json:"subject"`
	}
	if err != nil || json.Unmarshal(header, &caller) != nil || caller.Subject != subject {
		return nil, errOtherConnection
	}
	header, _, err = readTwoPart(r)
	if err != nil {
		return nil, fmt.Errorf("prologue: %w", err)
	}
	var prologue struct {
		Error *string `json:"error"`
	}
	if err := json.Unmarshal(header, &prologue); err != nil {
		return nil, fmt.Errorf("prologue: %w", err)
	}
	if prologue.Error != nil {
		return nil, fmt.Errorf("refused: %.1024q", *prologue.Error)
	}
	for {
		header, body, err := readTwoPart(r)
		if err != nil {
			return nil, err
		}
		if len(body) == 0 {
			return nil, fmt.Errorf("control message %.256q before an answer", header)
		}
		item, err := kvevent.DecodeDynamoItem(body)
		if err != nil {
			return nil, err
		}
		if item.Reply != nil {
			return item.Reply, nil
		}
		if item.Final {
			return nil, errors.New("the stream ended without an answer")
		}
	}
}
