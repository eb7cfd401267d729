package kvevent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// StreamKind says what a frame of a byte stream carries. The numbers are on the
// wire and never change.
type StreamKind uint8

const (
	// StreamAnnouncement carries an Announcement.
	StreamAnnouncement StreamKind = 1
	// StreamEvents carries an Envelope.
	StreamEvents StreamKind = 2
	// StreamReply carries a QueryReply.
	StreamReply StreamKind = 3
	// StreamLoad carries a LoadReport.
	StreamLoad StreamKind = 4
	// StreamHeartbeat carries, as u64 little-endian, how many frames the sender has
	// dropped on this stream because its receiver was slow.
	StreamHeartbeat StreamKind = 5
)

// MaxStreamFrame bounds the body of a frame of a byte stream.
const MaxStreamFrame = 16 << 20

// streamHeader is the size of a frame's header: the length of the body as u32
// little-endian, and the kind.
const streamHeader = 5

// ErrStreamFrame is wrapped by errors of ReadStreamFrame about the bytes read.
var ErrStreamFrame = errors.New("bad frame")

// BeginStreamFrame appends a frame's header. Append the body to the result, and
// then call EndStreamFrame with the length that dst had.
func BeginStreamFrame(dst []byte, kind StreamKind) []byte {
	return append(dst, 0, 0, 0, 0, byte(kind))
}

// EndStreamFrame completes the header of the frame that begins at start in b.
func EndStreamFrame(b []byte, start int) []byte {
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start-streamHeader))
	return b
}

// ReadStreamFrame reads one frame into buf, which it grows if necessary, and
// returns the body, which lies in buf's memory. io.EOF says that the stream ended
// between two frames.
func ReadStreamFrame(r io.Reader, buf []byte) (kind StreamKind, body []byte, err error) {
	var head [streamHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, buf, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > MaxStreamFrame {
		return 0, buf, fmt.Errorf("%w: %d bytes, want at most %d", ErrStreamFrame, n, MaxStreamFrame)
	}
	// The sender may announce more bytes than it sends, so a large body gets its memory step by
	// step.
	const step = 1 << 20
	body = buf[:0]
	for left := int(n); left > 0; {
		part := min(left, step)
		at := len(body)
		body = append(body, make([]byte, part)...)
		if _, err := io.ReadFull(r, body[at:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, body, fmt.Errorf("frame of %d bytes: %w", n, err)
		}
		left -= part
	}
	return StreamKind(head[4]), body, nil
}
