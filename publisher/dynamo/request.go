package dynamo

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// Bounds of a request in bytes. A request has little more than two ids and an address.
const (
	maxPath    = 1 << 10
	maxHeaders = 16 << 10
	maxPayload = 64 << 10
)

// errMalformed marks errors in the content of a request. The rest of its connection cannot be
// read.
var errMalformed = errors.New("malformed request")

// frame is a message of the request plane.
type frame struct {
	path    string
	payload []byte
}

// readFrame reads a request frame of Dynamo's TCP transport:
//
//	u16 length | path | u16 length | JSON headers | u32 length | payload
//
// with big-endian lengths. It skips the headers, which are for tracing. It returns io.EOF
// when the stream ended between two frames.
func readFrame(r *bufio.Reader) (frame, error) {
	var f frame
	n, err := readLength(r, 2, maxPath)
	if err != nil {
		return f, err
	}
	path := make([]byte, n)
	if _, err := io.ReadFull(r, path); err != nil {
		return f, insideFrame(err)
	}
	f.path = string(path)
	if n, err = readLength(r, 2, maxHeaders); err != nil {
		return f, insideFrame(err)
	}
	if _, err := r.Discard(n); err != nil {
		return f, insideFrame(err)
	}
	if n, err = readLength(r, 4, maxPayload); err != nil {
		return f, insideFrame(err)
	}
	f.payload = make([]byte, n)
	_, err = io.ReadFull(r, f.payload)
	return f, insideFrame(err)
}

// readLength reads a big-endian length of size bytes, 2 or 4. A length above limit is an error.
func readLength(r io.Reader, size, limit int) (int, error) {
	var b [4]byte
	if _, err := io.ReadFull(r, b[4-size:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(b[:])
	if n > uint32(limit) {
		return 0, fmt.Errorf("%w: a length of %d, want at most %d", errMalformed, n, limit)
	}
	return int(n), nil
}

// insideFrame turns io.EOF into io.ErrUnexpectedEOF.
func insideFrame(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// request is a decoded recovery query, with the address and subject for its answer.
type request struct {
	query   kvevent.DynamoQuery
	address string
	subject string
}

// requestHeader is the head of a request's payload.
type requestHeader struct {
	ResponseType string `json:"response_type"`
	Codec        string `json:"payload_codec"`
	Connection   struct {
		Transport string `json:"transport"`
		Info      string `json:"info"`
	} `json:"connection_info"`
}

// connectionInfo is JSON inside of the header's JSON.
type connectionInfo struct {
	Address string `json:"address"`
	Subject string `json:"subject"`
	Stream  string `json:"stream_type"`
}

// decodeRequest decodes the payload of a frame: a two-part message. Its JSON head says where the
// answer goes, its msgpack body is the query. The errors wrap errMalformed and are sent to the
// router.
func decodeRequest(payload []byte) (request, error) {
	head, body, err := splitTwoPart(payload)
	if err != nil {
		return request{}, err
	}
	var h requestHeader
	if err := json.Unmarshal(head, &h); err != nil {
		return request{}, fmt.Errorf("%w: head: %w", errMalformed, err)
	}
	var info connectionInfo
	if err := json.Unmarshal([]byte(h.Connection.Info), &info); err != nil {
		return request{}, fmt.Errorf("%w: connection info: %w", errMalformed, err)
	}
	switch {
	case h.Codec != "msgpack":
		return request{}, fmt.Errorf("%w: payload codec %.32q, want msgpack", errMalformed, h.Codec)
	case h.Connection.Transport != "tcp_server":
		return request{}, fmt.Errorf("%w: response transport %.32q, want tcp_server", errMalformed, h.Connection.Transport)
	case info.Stream != "response":
		return request{}, fmt.Errorf("%w: stream type %.32q, want response", errMalformed, info.Stream)
	}
	q, err := kvevent.DecodeDynamoQuery(body)
	if err != nil {
		return request{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return request{query: q, address: info.Address, subject: info.Subject}, nil
}

// Two-part messages are u64 head length | u64 body length | u64 checksum | head |
// body, big-endian; a checksum of 0 is none.
const twoPartHeader = 24

// splitTwoPart returns the parts of a two-part message that b consists of. They share its memory.
func splitTwoPart(b []byte) (head, body []byte, err error) {
	if len(b) < twoPartHeader {
		return nil, nil, fmt.Errorf("%w: a message of %d bytes, want at least %d", errMalformed, len(b), twoPartHeader)
	}
	headLen, bodyLen := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	rest := b[twoPartHeader:]
	if headLen > uint64(len(rest)) || bodyLen != uint64(len(rest))-headLen {
		return nil, nil, fmt.Errorf("%w: parts of %d and %d bytes in %d", errMalformed, headLen, bodyLen, len(rest))
	}
	return rest[:headLen], rest[headLen:], nil
}

// appendTwoPart appends a two-part message without checksum.
func appendTwoPart(dst, head, body []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(len(head)))
	dst = binary.BigEndian.AppendUint64(dst, uint64(len(body)))
	dst = binary.BigEndian.AppendUint64(dst, 0)
	return append(append(dst, head...), body...)
}

// appendAck appends the answer on the request's own connection: empty when the
// request was accepted, else why not.
func appendAck(dst []byte, refusal string) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(refusal)))
	return append(dst, refusal...)
}

// checkDialBack refuses an answer to another host than the requester's. A router on this
// machine may come from the loopback and name another address of the machine. local
// reports whether an address is the machine's.
func checkDialBack(address string, requester netip.Addr, local func(netip.Addr) bool) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("response address %.64q: want an IP address and a port", address)
	}
	host, from := to.Addr().Unmap(), requester.Unmap()
	isAllowed := host == from || local(host) && local(from)
	if to.Port() == 0 || !isAllowed {
		return fmt.Errorf("response address %s: want a port of the requester's address %s", to, from)
	}
	return nil
}

// isLocal reports whether an address is one of this machine's.
func isLocal(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(addresses, func(n net.Addr) bool {
		prefix, err := netip.ParsePrefix(n.String())
		return err == nil && prefix.Addr().Unmap() == a
	})
}

// remoteAddr returns the address at the other end of a TCP connection.
func remoteAddr(c net.Conn) netip.Addr {
	a, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	return a.Addr()
}
