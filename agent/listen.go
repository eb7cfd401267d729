package agent

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

const (
	socketMode    = 0o660
	socketDirMode = 0o750
	// openSocketMode and openSocketDirMode are for sockets that other users may
	// connect to; the agent then goes by the peer's credentials alone.
	openSocketMode    = 0o666
	openSocketDirMode = 0o755
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
	return control.ListenUnix(proto.Network, path, mode)
}
