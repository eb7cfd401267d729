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

// The users of the NATS server. The router has one of its own, so that it alone
// can be kept from asking.
const (
	agentUser  = "agent"
	routerUser = "router"
)

// brokerLook is the time between two looks whether the server is there.
const brokerLook = 10 * time.Millisecond

// StartBroker starts the NATS server, each time on the same port, and waits until
// it accepts connections.
func (r *Rig) StartBroker(ctx context.Context) (*Process, error) {
	config := filepath.Join(r.dir, "nats.conf")
	if err := os.WriteFile(config, []byte(r.brokerConfig()), 0o600); err != nil {
		return nil, err
	}
	command := []string{r.o.NATSServer, "-c", config}
	if r.port == 0 {
		command = append(command, "--ports_file_dir", r.dir)
	}
	p, err := r.Start("nats", command, nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, readyTime, fmt.Errorf("start nats: not ready after %s", readyTime))
	defer cancel()
	tick := time.NewTicker(brokerLook)
	defer tick.Stop()
	for !r.brokerAnswers(ctx, p) {
		select {
		case <-tick.C:
		case <-p.done:
			return nil, fmt.Errorf("start nats: it ended: %v", p.err)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return p, nil
}

// brokerConfig is the server's configuration: two users on loopback.
func (r *Rig) brokerConfig() string {
	port := r.port
	if port == 0 {
		port = -1 // any free one
	}
	permissions := ""
	if r.o.BlindRouter {
		permissions = fmt.Sprintf(", permissions: {publish: {deny: [%q]}}", "blockyard."+r.cluster+".kv-query.>")
	}
	return fmt.Sprintf(`listen: "127.0.0.1:%d"
authorization: { users: [
  {user: %q, password: %q},
  {user: %q, password: %q%s}
] }
`, port, agentUser, r.secret, routerUser, r.secret, permissions)
}

// brokerAnswers reports whether the server accepts connections; of the first one
// it learns the port.
func (r *Rig) brokerAnswers(ctx context.Context, p *Process) bool {
	if r.port == 0 {
		r.port = r.readPort(p)
		if r.port == 0 {
			return false
		}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.brokerAddr())
	if err != nil {
		return false
	}
	_ = conn.Close() // nothing was said
	return true
}

// readPort reads the file in which the server says where it listens; 0 while it
// is not there.
func (r *Rig) readPort(p *Process) int {
	name := fmt.Sprintf("%s_%d.ports", filepath.Base(r.o.NATSServer), p.cmd.Process.Pid)
	data, err := os.ReadFile(filepath.Join(r.dir, name))
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

func (r *Rig) brokerAddr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)) }

// NATSURL is the NATS server's URL for a consumer of the events; it is known from
// the server's first start on, and contains a password.
func (r *Rig) NATSURL() string { return r.natsURL(routerUser) }

// natsEnv tells a child the NATS server: other users could read its password from
// a command line.
func (r *Rig) natsEnv(user string) []string { return []string{"BLOCKYARD_NATS=" + r.natsURL(user)} }

func (r *Rig) natsURL(user string) string {
	u := url.URL{Scheme: "nats", User: url.UserPassword(user, r.secret), Host: r.brokerAddr()}
	return u.String()
}
