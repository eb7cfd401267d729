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

// startEmbedded starts the NATS server inside the agent. It takes the token of an
// earlier agent's URL file, and its port when any port will do and that one is free,
// so that routers that know the earlier server find this one.
func startEmbedded(c *Config, o nats.EmbeddedOptions) (*nats.Embedded, error) {
	file := c.URLFile
	token, port, err := formerServer(file)
	if err != nil {
		return nil, err
	}
	o.Token = cmp.Or(o.Token, token)
	var server *nats.Embedded
	if o.Port == 0 && port != 0 {
		former := o
		former.Port = port
		server, _ = nats.StartEmbedded(former) // another port does as well
	}
	if server == nil {
		if server, err = nats.StartEmbedded(o); err != nil {
			return nil, err
		}
	}
	return server, nil
}

// WriteURL writes the URL of the NATS server inside the agent, which has
// the token, to a file for the agent's user alone. The caller must own the socket
// that the file is named after: another agent's file would send its routers here.
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

// formerServer is the token and the port in the URL in a file; empty and 0 without the
// file.
func formerServer(file string) (token string, port int, err error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, fmt.Errorf("URL of an earlier embedded NATS server: %w", err)
	}
	u, err := url.Parse(strings.TrimSpace(string(b)))
	if err != nil || u.User == nil {
		return "", 0, nil // what is not ours is written over
	}
	n, _ := strconv.ParseUint(u.Port(), 10, 16) // 0 for none
	return u.User.Username(), int(n), nil
}

// advertised is a server's URL as other machines can use it: with this host or, when that
// is empty and the server listens on all addresses, with the machine's name.
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

// replaceFile writes a file that only the agent's user can read, whatever was there.
func replaceFile(name, text string) error {
	next := name + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
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
