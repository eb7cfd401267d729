package dynamo

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// testTimeout is how long a test waits for what must happen.
const testTimeout = 20 * time.Second

// caller is a router's side of the request plane.
type caller struct {
	t    *testing.T
	conn net.Conn
	back net.Listener // where answers arrive
}

func newCaller(t *testing.T, address string) *caller {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, testTimeout)
	if err != nil {
		t.Fatal(err)
	}
	back, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		_ = back.Close()
	})
	if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	return &caller{t: t, conn: conn, back: back}
}

// requestFrame is a request as a router sends it, with head as the head of its
// payload.
func requestFrame(path string, head, body []byte) []byte {
	const headers = `{"request-id":"1"}`
	b := binary.BigEndian.AppendUint16(nil, uint16(len(path)))
	b = append(b, path...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(headers)))
	b = append(b, headers...)
	payload := appendTwoPart(nil, head, body)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// requestHead is the head of a request whose answer goes to an address.
func requestHead(t *testing.T, address string) []byte {
	t.Helper()
	info, err := json.Marshal(map[string]string{
		"address": address, "subject": "subject-1", "context": "context-1", "stream_type": "response",
	})
	if err != nil {
		t.Fatal(err)
	}
	head, err := json.Marshal(map[string]any{
		"id": "1", "request_type": "single_in", "response_type": "many_out", "payload_codec": "msgpack",
		"connection_info": map[string]string{"transport": "tcp_server", "info": string(info)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return head
}

// call sends bytes and returns the acknowledgement.
func (c *caller) call(request []byte) string {
	c.t.Helper()
	if _, err := c.conn.Write(request); err != nil {
		c.t.Fatal(err)
	}
	var n [4]byte
	if _, err := io.ReadFull(c.conn, n[:]); err != nil {
		c.t.Fatal(err)
	}
	text := make([]byte, binary.BigEndian.Uint32(n[:]))
	if _, err := io.ReadFull(c.conn, text); err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

// ask sends a query and returns the answer that comes on a connection of its own.
func (c *caller) ask(s *Source, q kvevent.DynamoQuery) *kvevent.QueryReply {
	c.t.Helper()
	request := requestFrame(s.queryPath, requestHead(c.t, c.back.Addr().String()), kvevent.AppendDynamoQuery(nil, &q))
	if refusal := c.call(request); refusal != "" {
		c.t.Fatal(refusal)
	}
	reply, err := c.answer()
	if err != nil {
		c.t.Fatal(err)
	}
	return reply
}

// answer accepts a connection and reads an answer to its end.
func (c *caller) answer() (*kvevent.QueryReply, error) {
	conn, err := c.back.Accept()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		return nil, err
	}
	for i, want := range []string{`{"subject":"subject-1","stream_type":"response"}`, `{"error":null}`} {
		head, body, err := readTwoPart(conn)
		if err != nil || string(head) != want || len(body) != 0 {
			return nil, fmt.Errorf("message %d: %q %q, %w", i, head, body, err)
		}
	}
	var reply *kvevent.QueryReply
	for {
		head, body, err := readTwoPart(conn)
		if err != nil || len(head) != 0 {
			return nil, fmt.Errorf("data: %q, %w", head, err)
		}
		item, err := kvevent.DecodeDynamoItem(body)
		if err != nil {
			return nil, err
		}
		if item.Final {
			break
		}
		reply = item.Reply
	}
	rest, err := io.ReadAll(conn)
	if want := appendTwoPart(nil, []byte(`"sentinel"`), nil); err != nil || !bytes.Equal(rest, want) {
		return nil, fmt.Errorf("after the end: %x, %w", rest, err)
	}
	return reply, nil
}

func readTwoPart(r io.Reader) (head, body []byte, err error) {
	var h [twoPartHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, nil, err
	}
	b := make([]byte, binary.BigEndian.Uint64(h[:])+binary.BigEndian.Uint64(h[8:]))
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, nil, err
	}
	return splitTwoPart(append(h[:], b...))
}
