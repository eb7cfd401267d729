package events

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/publisher/nats"
)

// startEmbedded starts the NATS server. It reuses the token in the URL file of an earlier
// agent, and the port if none is set and that one is free, so that routers find the new
// server.
func startEmbedded(c *Config, o nats.EmbeddedOptions) (*nats.Embedded, error) {
	file := c.URLFile
	token, port, err := earlierServer(file)
	if err != nil {
		return nil, err
	}
	o.Token = cmp.Or(o.Token, token)
	var server *nats.Embedded
	if o.Port == 0 && port != 0 {
		same := o
		same.Port = port
		server, _ = nats.StartEmbedded(same) // any other port will do
	}
	if server == nil {
		if server, err = nats.StartEmbedded(o); err != nil {
			return nil, err
		}
	}
	return server, nil
}

// WriteURL writes the URL of the embedded NATS server, token included, to a file that only the
// agent's user can read. The caller must own the socket beside the file: another agent's file
// would send its routers here. Without a server WriteURL does nothing.
func (h *Hub) WriteURL() error {
	server, c := h.out.server, h.out.cfg
	if server == nil {
		return nil
	}
	u, err := advertised(server.URL(), c.EmbeddedAdvertise)
	if err == nil {
		err = replaceFile(c.URLFile, u+"\n")
	}
	if err != nil {
		return fmt.Errorf("URL of the embedded NATS server: %w", err)
	}
	h.log.Info("a NATS server runs in this agent", zap.String("url_file", c.URLFile))
	return nil
}

// earlierServer returns the token and the port of the URL in a file; empty and 0 without the
// file.
func earlierServer(file string) (token string, port int, err error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, fmt.Errorf("URL of an earlier embedded NATS server: %w", err)
	}
	u, err := url.Parse(strings.TrimSpace(string(b)))
	if err != nil || u.User == nil {
		return "", 0, nil // not our file: it is overwritten
	}
	n, _ := strconv.ParseUint(u.Port(), 10, 16) // 0 for none
	return u.User.Username(), int(n), nil
}

// advertised returns a server's URL for other machines: with host or, where host is empty and
// the server listens on all addresses, with the machine's name.
func advertised(server, host string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", err
	}
	if a, err := netip.ParseAddr(u.Hostname()); host == "" && err == nil && a.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("the name of this machine: %w", err)
		}
	}
	if host != "" {
		u.Host = net.JoinHostPort(host, u.Port())
	}
	return u.String(), nil
}

// replaceFile writes a file that only the agent's user can read, and replaces an existing one.
func replaceFile(name, text string) error {
	next := name + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// O_EXCL: an existing file would keep its own mode, and a link would lead elsewhere.
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(next, name)
}
