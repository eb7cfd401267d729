package control

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peerListener accepts connections whose RemoteAddr names the process at the other end.
type peerListener struct{ *net.UnixListener }

// Accept implements net.Listener.
func (l peerListener) Accept() (net.Conn, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return peerConn{c, peerAddr(peerOf(c))}, nil
}

// peerConn is a connection with the address of its peer.
type peerConn struct {
	*net.UnixConn
	peer peerAddr
}

// RemoteAddr implements net.Conn.
func (c peerConn) RemoteAddr() net.Addr { return c.peer }

// peerAddr is the user and the process at the other end of a Unix socket, as the kernel says.
type peerAddr string

// Network implements net.Addr.
func (peerAddr) Network() string { return "unix" }

// String implements net.Addr.
func (a peerAddr) String() string { return string(a) }

// peerOf returns the text of the peer of c.
func peerOf(c *net.UnixConn) string {
	raw, err := c.SyscallConn()
	if err != nil {
		return "unknown process"
	}
	text := "unknown process"
	_ = raw.Control(func(fd uintptr) { // without an answer the process stays unknown
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			text = fmt.Sprintf("uid %d pid %d", peer.Uid, peer.Pid)
		}
	})
	return text
}
