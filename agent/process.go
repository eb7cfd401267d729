package agent

import (
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// process watches the process on the other end of a connection through a pidfd,
// which, unlike a pid, can never come to mean another process.
type process struct {
	pid    int32
	f      *os.File      // the pidfd; nil when the process cannot be watched
	exited chan struct{} // closed when the process is gone
	wg     sync.WaitGroup
}

// watchProcess watches the peer of c, whose pid is pid. The process it returns
// is never nil and must be closed.
//
// With an error (an old kernel, a peer in a pid namespace that we do not see)
// the process cannot be watched and never counts as gone: slots that it was
// granted stay in quarantine until the agent restarts, and a gauge shows them.
func watchProcess(c *net.UnixConn, pid int32) (*process, error) {
	p := &process{pid: pid, exited: make(chan struct{})}
	fd, err := peerPidfd(c, pid)
	if err != nil {
		return p, fmt.Errorf("watch process %d: %w", pid, err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return p, fmt.Errorf("watch process %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return p, fmt.Errorf("watch process %d: %w", pid, err)
	}
	p.f = f
	p.wg.Go(func() {
		// The runtime's poller waits for us: no thread is held. An error means that
		// the file was closed.
		if raw.Read(pidfdReadable) == nil {
			close(p.exited)
		}
	})
	return p, nil
}

// peerPidfd opens a pidfd of c's peer: the kernel's own record of it where
// there is one (Linux 6.5), else by pid. In the latter case the connection is
// still open, so that a pid taken over by another process is all but excluded.
func peerPidfd(c *net.UnixConn, pid int32) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var sockErr error
	if err := raw.Control(func(s uintptr) {
		fd, sockErr = unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	}); err != nil {
		return -1, err
	}
	if sockErr == nil {
		return fd, nil
	}
	if pid <= 0 {
		return -1, fmt.Errorf("the peer is not in a pid namespace of this agent: %w", sockErr)
	}
	return unix.PidfdOpen(int(pid), 0)
}

// pidfdReadable reports whether a pidfd's process has exited.
func pidfdReadable(fd uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1 && poll[0].Revents&(unix.POLLIN|unix.POLLHUP) != 0
}

// gone reports whether the process has exited.
func (p *process) gone() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// close ends the watch.
func (p *process) close() {
	if p.f != nil {
		p.f.Close()
		p.wg.Wait()
	}
}
