package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxSocketPath is the longest path that fits the kernel's address of a socket.
	maxSocketPath = 107
	// probeTimeout bounds the look at who answers on an existing socket.
	probeTimeout = time.Second
)

// ListenUnix makes the Unix socket path with the permissions mode. Network is
// "unix" or "unixpacket". The directory must exist. A socket file that nobody
// answers on is replaced; one that is answered on, and a file that is no socket,
// are errors. Closing the listener removes the file.
func ListenUnix(network, path string, mode fs.FileMode) (*net.UnixListener, error) {
	l, err := listenUnix(network, path, mode)
	if err != nil {
		return nil, fmt.Errorf("socket path %s: %w", path, err)
	}
	return l, nil
}

// listenUnix returns a listener on a Unix socket with the permissions of mode. It replaces the
// socket of a dead process. The error says that another process serves there, or that path is no
// socket.
func listenUnix(network, path string, mode fs.FileMode) (*net.UnixListener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("%d bytes, limit %d", len(path), maxSocketPath)
	}
	unlock, err := lockDirectory(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeStale(network, path); err != nil {
		return nil, err
	}
	// The file gets the mode of the descriptor, less the umask, so that no moment
	// has wider permissions. Chmod then adds what the umask took.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.Fchmod(int(fd), uint32(mode.Perm())) })
	}}
	l, err := config.Listen(context.Background(), network, path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l.(*net.UnixListener), nil
}

// lockDirectory locks dir until the caller calls unlock. So two processes that start at once
// cannot remove each other's new socket. The lock is on the directory itself and leaves no file.
func lockDirectory(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// removeStale removes the socket at path if no process serves on it. It returns an error when one
// does, and when the file is no socket. The caller holds the lock of the directory.
func removeStale(network, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("exists and is not a socket (%s)", info.Mode())
	}
	c, err := net.DialTimeout(network, path, probeTimeout)
	switch {
	case err == nil:
		c.Close()
		return errors.New("another process is serving on it")
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	}
	return fmt.Errorf("cannot tell whether another process is serving on it: %w", err)
}
