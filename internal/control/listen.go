package control

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	socketMode = 0o600
	// ownDirMode is the mode of a directory that Listen makes. The socket's own mode
	// keeps others out; the agent's socket for engines of other users may lie beside it.
	ownDirMode = 0o755
)

// DefaultPath returns the default path of the control socket called name. It is in /run/blockyard
// for root, else in XDG_RUNTIME_DIR, else in a directory of the user's own below the one for
// temporary files.
func DefaultPath(name string) string {
	dir := "/run/blockyard"
	if uid := os.Getuid(); uid != 0 {
		dir = filepath.Join(os.TempDir(), "blockyard-"+strconv.Itoa(uid))
		if runtime := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(runtime) {
			dir = filepath.Join(runtime, "blockyard")
		}
	}
	return filepath.Join(dir, name+".sock")
}

// Check reports, as an error, an address that Listen and Client do not take. With encrypted, for a
// listener that speaks TLS, it reports a socket too.
func Check(address string, encrypted bool) error {
	network, _, err := split(address)
	if encrypted && (err != nil || network == "unix") {
		return fmt.Errorf("control address %q: TLS needs HOST:PORT", address)
	}
	return err
}

// split parses a control address: the path of a socket, which unix: may precede, or HOST:PORT. It
// returns the network, "unix" or "tcp", and the address in that network.
func split(address string) (network, in string, err error) {
	path, named := strings.CutPrefix(address, "unix:")
	if named || strings.Contains(address, "/") {
		if !filepath.IsAbs(path) {
			return "", "", fmt.Errorf("control address %q: want an absolute path or HOST:PORT", address)
		}
		return "unix", filepath.Clean(path), nil
	}
	_, port, err := net.SplitHostPort(address)
	if _, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil {
		return "", "", fmt.Errorf("control address %q: want an absolute path or HOST:PORT", address)
	}
	return "tcp", address, nil
}

// Listen returns a listener at a control address: the path of a socket or HOST:PORT. It makes the
// directory of a socket if it is missing. The remote address of a socket's connection has the
// peer's user and process. The error names the address.
func Listen(address string) (net.Listener, error) {
	network, in, err := split(address)
	if err != nil {
		return nil, err
	}
	if network == "unix" {
		var l *net.UnixListener
		if err = ownDirectory(filepath.Dir(in)); err == nil {
			l, err = ListenUnix(network, in, socketMode)
		}
		if err != nil {
			return nil, fmt.Errorf("control address: %w", err)
		}
		return peerListener{l}, nil
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), network, in)
	if err != nil {
		return nil, fmt.Errorf("control address %s: %w", address, err)
	}
	return l, nil
}

// ownDirectory makes dir if it is missing. It returns an error for a directory of another user, who
// could replace the socket.
func ownDirectory(dir string) error {
	if err := os.MkdirAll(dir, ownDirMode); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != os.Getuid() {
		return fmt.Errorf("directory %s: owned by user %d, want %d or root", dir, s.Uid, os.Getuid())
	}
	return nil
}

// Client returns an HTTP client of the listener at address, and base, the start of every URL that
// the client requests. address is a control address or a URL. The client shows one of the certificates
// to a server that asks for one.
func Client(address string, certificates ...tls.Certificate) (client *http.Client, base string, err error) {
	if strings.HasPrefix(address, "http://") || strings.HasPrefix(address, "https://") {
		client = &http.Client{}
		if len(certificates) > 0 {
			client.Transport = &http.Transport{
				Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: certificates},
			}
		}
		return client, strings.TrimRight(address, "/"), nil
	}
	network, in, err := split(address)
	if err != nil {
		return nil, "", err
	}
	if network == "tcp" {
		return &http.Client{}, "http://" + in, nil
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, in)
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial}}, "http://localhost", nil
}
