package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/proto"
)

const (
	socketMode    = 0o660
	socketDirMode = 0o750
	// probeTimeout bounds the look at who answers on an existing socket.
	probeTimeout = time.Second
)

// listen makes the agent's socket at path. A socket file that nobody answers on
// is what a killed agent left behind and is replaced; one that is answered on,
// or a file that is no socket, is refused. The listener removes the file when it
// is closed.
func listen(path string) (*net.UnixListener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, socketDirMode); err != nil {
		return nil, fmt.Errorf("socket path %s: %w", path, err)
	}
	unlock, err := lockDirectory(dir)
	if err != nil {
		return nil, fmt.Errorf("socket path %s: %w", path, err)
	}
	defer unlock()
	if err := removeStale(path); err != nil {
		return nil, fmt.Errorf("socket path %s: %w", path, err)
	}
	l, err := net.ListenUnix(proto.Network, &net.UnixAddr{Name: path, Net: proto.Network})
	if err != nil {
		return nil, fmt.Errorf("socket path %s: %w", path, err)
	}
	if err := os.Chmod(path, socketMode); err != nil {
		l.Close()
		return nil, fmt.Errorf("socket path %s: %w", path, err)
	}
	return l, nil
}

// lockDirectory keeps two agents that start at once from removing each other's
// fresh socket. The lock is on the directory itself, so that it leaves no file.
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

// removeStale removes the socket of a dead agent.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("exists and is not a socket (%s)", info.Mode())
	}
	c, err := net.DialTimeout(proto.Network, path, probeTimeout)
	switch {
	case err == nil:
		c.Close()
		return errors.New("another agent is serving on it")
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	}
	return fmt.Errorf("cannot tell whether another agent is serving on it: %w", err)
}
