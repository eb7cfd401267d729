package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

const (
	socketMode    = 0o660
	socketDirMode = 0o750
	// openSocketMode and openSocketDirMode let other users connect. The server then checks the
	// peer's credentials alone.
	openSocketMode    = 0o666
	openSocketDirMode = 0o755
)

// Listener is the agent's socket. Closing it removes the socket and leaves the directory.
type Listener struct {
	*net.UnixListener
	path   string
	made   []string // directories that Listen made: an outer one comes first
	others bool     // every user can open the socket
}

// Listen makes the agent's socket at path. It replaces the socket of a killed agent, on which
// no process answers. It refuses a socket in use and any other file.
//
// others lets every user open the socket and the directories that Listen makes. An existing
// directory keeps its mode; Listen logs a warning if that mode keeps other users out.
func Listen(path string, others bool, log *zap.Logger) (*Listener, error) {
	l := &Listener{path: path, others: others}
	mode, dirMode := modes(others)
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		l.made = slices.Insert(l.made, 0, dir)
	}
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return nil, fmt.Errorf("socket path %s: %w", path, err)
	}
	if err := l.chmodMade(dirMode); err != nil { // adds what the umask took
		return nil, err
	}
	if others {
		l.warnOfDirectory(log)
	}
	var err error
	l.UnixListener, err = control.ListenUnix(proto.Network, path, mode)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// modes returns the modes of the socket and of a directory that Listen makes.
func modes(others bool) (socket, dir fs.FileMode) {
	if others {
		return openSocketMode, openSocketDirMode
	}
	return socketMode, socketDirMode
}

// Open lets every user open the socket (others), or only the agent's user and group. The error says which
// user of uids cannot reach the socket; nothing has changed then. Only one goroutine may call it at a time.
func (l *Listener) Open(uids []uint32, others bool, log *zap.Logger) error {
	if others && len(l.made) == 0 {
		if err := l.checkDirectory(uids); err != nil {
			return err
		}
		l.warnOfDirectory(log)
	}
	if err := l.chmod(others); err != nil {
		return errors.Join(err, l.chmod(l.others))
	}
	l.others = others
	return nil
}

// chmod sets the modes of the socket and of the directories that Listen made.
func (l *Listener) chmod(others bool) error {
	mode, dirMode := modes(others)
	if err := l.chmodMade(dirMode); err != nil {
		return err
	}
	if err := os.Chmod(l.path, mode); err != nil {
		return fmt.Errorf("socket path %s: %w", l.path, err)
	}
	return nil
}

func (l *Listener) chmodMade(mode fs.FileMode) error {
	for _, dir := range l.made {
		if err := os.Chmod(dir, mode); err != nil {
			return fmt.Errorf("directory %s of the socket: %w", dir, err)
		}
	}
	return nil
}

// checkDirectory returns an error when only the owner of the socket's directory can pass the directory,
// and a user is another one. Whether a user is in the directory's group is not known here.
func (l *Listener) checkDirectory(uids []uint32) error {
	dir := filepath.Dir(l.path)
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("directory of the socket: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode().Perm()&0o011 != 0 {
		return nil
	}
	for _, uid := range uids {
		if uid != 0 && uid != stat.Uid {
			return fmt.Errorf("allowed user %d: cannot reach the socket, because its directory %s has mode %04o: want 0755, or 0750 for users of its group",
				uid, dir, info.Mode().Perm())
		}
	}
	return nil
}

// warnOfDirectory logs a warning when users outside of its group cannot pass the socket's directory.
func (l *Listener) warnOfDirectory(log *zap.Logger) {
	dir := filepath.Dir(l.path)
	if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o001 == 0 {
		log.Warn("other users may connect, but the mode of the socket's directory keeps out users who are not in its group",
			zap.String("dir", dir), zap.Stringer("mode", info.Mode()))
	}
}
