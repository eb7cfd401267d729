package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// The users of the NATS server. The router has a user of its own, so that BlindRouter can
// forbid its queries alone.
const (
	agentUser  = "agent"
	routerUser = "router"
)

// natsLook is the time between two checks whether the server is ready.
const natsLook = 10 * time.Millisecond

// StartNATS starts the NATS server, each time on the same port, and waits until
// it accepts connections.
func (c *Cluster) StartNATS(ctx context.Context) (*Process, error) {
	config := filepath.Join(c.o.Dirs.Work, "nats.conf")
	if err := os.WriteFile(config, []byte(c.natsConfig()), 0o600); err != nil {
		return nil, err
	}
	command := []string{c.o.NATSServer, "-c", config}
	if c.port == 0 {
		command = append(command, "--ports_file_dir", c.o.Dirs.Work)
	}
	p, err := c.Start(Spec{Name: "nats", Stage: stageNATS, Command: command})
	if err != nil {
		return nil, err
	}
	err = Until(ctx, readyTime, natsLook, func() (bool, error) {
		if p.Exited() {
			return false, p.failed("it ended: %s", p.ending())
		}
		return c.natsAnswers(ctx, p), nil
	})
	if err != nil {
		return nil, fmt.Errorf("start nats: %w", err)
	}
	return p, nil
}

// natsConfig returns the text of the server's configuration: a port on loopback, and a user each for
// agents and the router. With BlindRouter the router may not ask publishers for lost events, so that
// it cannot repair gaps.
func (c *Cluster) natsConfig() string {
	port := c.port
	if port == 0 {
		port = -1 // any free one
	}
	permissions := ""
	if c.o.BlindRouter {
		permissions = fmt.Sprintf(", permissions: {publish: {deny: [%q]}}", "blockyard."+c.o.Name+".kv-query.>")
	}
	streams := ""
	if c.o.JetStream {
		streams = fmt.Sprintf("jetstream: {store_dir: %q}\n", filepath.Join(c.o.Dirs.Work, "jetstream"))
	}
	return streams + fmt.Sprintf(`listen: "127.0.0.1:%d"
authorization: { users: [
  {user: %q, password: %q},
  {user: %q, password: %q%s}
] }
`, port, agentUser, c.secret, routerUser, c.secret, permissions)
}

// natsAnswers reports whether the server p accepts connections. The first server chooses its
// port, which natsAnswers reads and keeps for later servers.
func (c *Cluster) natsAnswers(ctx context.Context, p *Process) bool {
	if c.port == 0 {
		c.port = c.readPort(p)
		if c.port == 0 {
			return false
		}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.natsAddr())
	if err != nil {
		return false
	}
	_ = conn.Close() // nothing was sent
	return true
}

// readPort returns the port that the server p chose, from the file that it writes; 0 while there
// is no such file.
func (c *Cluster) readPort(p *Process) int {
	name := fmt.Sprintf("%s_%d.ports", filepath.Base(c.o.NATSServer), p.cmd.Process.Pid)
	data, err := os.ReadFile(filepath.Join(c.o.Dirs.Work, name))
	if err != nil {
		return 0
	}
	var ports struct {
		NATS []string `json:"nats"`
	}
	if json.Unmarshal(data, &ports) != nil || len(ports.NATS) == 0 {
		return 0
	}
	u, err := url.Parse(ports.NATS[0])
	if err != nil {
		return 0
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return 0
	}
	return port
}

// NATSAddress returns the host and port of the NATS server after its first start.
func (c *Cluster) NATSAddress() string { return c.natsAddr() }

// RouteThrough makes routers that start from now on connect to address, a proxy of the NATS server.
func (c *Cluster) RouteThrough(address string) { c.proxy = address }

func (c *Cluster) natsAddr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)) }

// NATSURL returns the NATS server's URL for a consumer of the events; it is known from
// the server's first start on, and contains a password.
func (c *Cluster) NATSURL() string { return c.natsURL(routerUser) }

// natsEnv tells a process the NATS server, if there is one. Other users could read
// its password from a command line.
func (c *Cluster) natsEnv(user string) []string {
	if c.o.NATSURL == "" && c.port == 0 {
		return nil
	}
	return []string{"BLOCKYARD_NATS=" + c.natsURL(user)}
}

func (c *Cluster) natsURL(user string) string {
	if c.o.NATSURL != "" {
		return c.o.NATSURL
	}
	u := url.URL{Scheme: "nats", User: url.UserPassword(user, c.secret), Host: c.natsAddr()}
	if user == routerUser && c.proxy != "" {
		u.Host = c.proxy
	}
	return u.String()
}
