package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/blockyard-ai/blockyard/internal/proto"
)

const (
	socketMode    = 0o660
	socketDirMode = 0o750
	// openSocketMode and openSocketDirMode are for sockets that other users may
	// connect to; the agent then goes by the peer's credentials alone.
	openSocketMode    = 0o666
	openSocketDirMode = 0o755
	// probeTimeout bounds the look at who answers on an existing socket.
	probeTimeout = time.Second
)

// listen makes the agent's socket at path. A socket file that nobody answers on
// is what a killed agent left behind and is replaced; one that is answered on,
// or a file that is no socket, is refused. The listener removes the file when it
// is closed. With others everybody may open the socket. A directory that was
// there before stays as it is; log is told when it keeps others out.
func listen(path string, others bool, log *zap.Logger) (*net.UnixListener, error) {
	dir := filepath.Dir(path)
	mode, dirMode := fs.FileMode(socketMode), fs.FileMode(socketDirMode)
	if others {
		mode, dirMode = openSocketMode, openSocketDirMode
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("socket path %s: %w", path, err)
	}
	if info, err := os.Stat(dir); others && err == nil && info.Mode().Perm()&0o001 == 0 {
		log.Warn("other users are allowed to connect, and the mode of the socket's directory keeps them out",
			zap.String("dir", dir), zap.Stringer("mode", info.Mode()))
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
	if err := os.Chmod(path, mode); err != nil {
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
