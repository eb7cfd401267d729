package proto

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Network is package net's name for the protocol's kind of socket.
const Network = "unixpacket"

// DefaultSendTimeout is how long a Conn waits for its peer to read.
const DefaultSendTimeout = 2 * time.Second

// maxFilesPerFrame is the number of descriptors that Receive has room for. One is
// allowed. With the rest of the room a client that sends two gets a clear error.
const maxFilesPerFrame = 4

// ErrTruncated says that a message was larger than MaxFrame, or carried more file
// descriptors than there is room for.
var ErrTruncated = errors.New("message was truncated")

// Frame is one received frame. Body is valid until the next Receive. The
// receiver owns File, nil unless the frame carried a descriptor.
type Frame struct {
	Header
	Body []byte
	File *os.File
}

// Peer is the process on the other end, as the kernel recorded it at connect.
type Peer struct {
	PID int32
	UID uint32
	GID uint32
}

// Conn carries frames over one SEQPACKET socket. Send may be called from several
// goroutines, Receive from one. Close ends both.
type Conn struct {
	c           *net.UnixConn
	sendTimeout time.Duration
	in          []byte
	oob         []byte

	mu  sync.Mutex
	out []byte // reused by Send
}

// NewConn returns a Conn that owns a connected SEQPACKET socket. A sendTimeout of 0
// means DefaultSendTimeout.
func NewConn(c *net.UnixConn, sendTimeout time.Duration) *Conn {
	sendTimeout = cmp.Or(sendTimeout, DefaultSendTimeout)
	return &Conn{
		c:           c,
		sendTimeout: sendTimeout,
		in:          make([]byte, MaxFrame+1), // one more, so that a larger message is noticed
		oob:         make([]byte, unix.CmsgSpace(4*maxFilesPerFrame)),
	}
}

// Dial returns a connection to the agent's socket at path. The error names the path.
func Dial(ctx context.Context, path string) (*Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, Network, path)
	if err != nil {
		return nil, fmt.Errorf("agent socket %s: %w", path, err)
	}
	return NewConn(c.(*net.UnixConn), 0), nil
}

// Close ends the connection. A Receive or Send in progress returns an error.
func (c *Conn) Close() error { return c.c.Close() }

// Socket returns the socket, for reading its options. The Conn owns it.
func (c *Conn) Socket() *net.UnixConn { return c.c }

// Peer returns the process, user and group at the other end of the connection, as the kernel
// recorded them when it connected.
func (c *Conn) Peer() (Peer, error) {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var sockErr error
	if err := raw.Control(func(fd uintptr) {
		cred, sockErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", err)
	}
	if sockErr != nil {
		return Peer{}, fmt.Errorf("peer credentials: %w", sockErr)
	}
	return Peer{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid}, nil
}

// SetReceiveDeadline bounds later Receives. The zero time lifts the bound.
func (c *Conn) SetReceiveDeadline(t time.Time) error { return c.c.SetReadDeadline(t) }

// Receive waits for the next frame. It returns io.EOF when the peer has closed, an
// error with IsMalformed when the message was no frame, and another error when the
// socket failed. Descriptors of a refused message are closed.
func (c *Conn) Receive() (Frame, error) {
	n, oobn, flags, _, err := c.c.ReadMsgUnix(c.in, c.oob)
	files, filesErr := parseFiles(c.oob[:max(oobn, 0)])
	f, err := checkMessage(c.in[:max(n, 0)], flags, files, errors.Join(err, filesErr))
	if err != nil {
		for _, file := range files {
			file.Close()
		}
		return Frame{}, err
	}
	return f, nil
}

// checkMessage returns the frame in a received message. flags, files and err are those of
// receiving it. The error is that of Receive. After an error the caller closes the files.
func checkMessage(b []byte, flags int, files []*os.File, err error) (Frame, error) {
	switch {
	case errors.Is(err, io.EOF):
		return Frame{}, io.EOF
	case err != nil:
		return Frame{}, fmt.Errorf("receive: %w", err)
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		return Frame{}, &malformedError{err: fmt.Errorf("%w: at most %d bytes and 1 file descriptor are allowed", ErrTruncated, MaxFrame)}
	case len(files) > 1:
		return Frame{}, &malformedError{err: fmt.Errorf("frame carries %d file descriptors: want at most 1", len(files))}
	}
	h, body, err := ParseFrame(b)
	if err != nil {
		return Frame{}, &malformedError{err: err}
	}
	f := Frame{Header: h, Body: body}
	if len(files) == 1 {
		f.File = files[0]
	}
	return f, nil
}

// parseFiles returns every descriptor in the control data of a message, also those that no frame may
// have: the caller closes them.
func parseFiles(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("control message: %w", err)
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // not SCM_RIGHTS: carries no descriptor
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// Send sends one frame, with file beside it unless file is nil. The caller keeps
// file. A nil m is an empty body. The connection is closed when the peer makes no
// room within the send timeout, or the socket fails otherwise.
func (c *Conn) Send(t Type, corr uint32, m Message, file *os.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, err := AppendFrame(c.out[:0], t, corr, m)
	if err != nil {
		return err
	}
	c.out = b
	if file == nil {
		return c.writeLocked(t, b, nil)
	}
	// Control keeps the descriptor open, and its number from being reused, until it
	// is sent.
	raw, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("send %s with %s: %w", t, file.Name(), err)
	}
	var sendErr error
	if err := raw.Control(func(fd uintptr) { sendErr = c.writeLocked(t, b, unix.UnixRights(int(fd))) }); err != nil {
		return fmt.Errorf("send %s with %s: %w", t, file.Name(), err)
	}
	return sendErr
}

// writeLocked writes one message with control data, and closes the connection after a failure. t
// is for errors. The caller holds c.mu.
func (c *Conn) writeLocked(t Type, b, oob []byte) error {
	if err := c.c.SetWriteDeadline(time.Now().Add(c.sendTimeout)); err != nil {
		return fmt.Errorf("send %s: %w", t, err)
	}
	if _, _, err := c.c.WriteMsgUnix(b, oob, nil); err != nil {
		c.c.Close()
		return fmt.Errorf("send %s: %w", t, err)
	}
	return nil
}
