package doctor

import (
	"context"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/natsauth"
	"github.com/blockyard-ai/blockyard/router/source"
	natssource "github.com/blockyard-ai/blockyard/router/source/nats"
)

const (
	natsPort = "4222"
	// announcementWait is Command.silence when it is 0: an agent announces itself each second.
	announcementWait = 3 * time.Second
)

// checkNATS logs in to the NATS server, when one is named, and waits for an announcement.
func (c *Command) checkNATS(ctx context.Context) {
	if c.NATS == "" {
		return
	}
	shown := natssource.WithoutCredentials(c.NATS)
	c.checked("nats " + shown)
	if err := natsauth.CheckServers(c.NATS); err != nil { // the error shows no part of a URL
		c.found("nats-refused", shown, "--nats as a URL", "%v", err)
		return
	}
	// A Source tries a server that is away for ever, so the port is asked first.
	if err := answers(ctx, c.NATS); err != nil {
		c.found("nats-unreachable", shown, "start the server, or another --nats", "%v", err)
		return
	}
	s, err := natssource.Connect(natssource.Options{URL: c.NATS, Cluster: c.Cluster, Auth: c.Auth, NoEvents: true})
	if err != nil {
		c.found("nats-refused", shown, "--nats-user, --nats-token, --nats-creds or --nats-tls-…, as the server wants it", "%v", err)
		return
	}
	defer s.Close()
	timer := time.NewTimer(c.silence)
	defer timer.Stop()
	for {
		select {
		case f := <-s.Frames():
			if f.Kind == source.FrameAnnouncement {
				return
			}
		case <-timer.C:
			c.found("cluster-silent", shown, "the --cluster of the agents, here and at the router; --nats at the agents", "no announcement in cluster %s for %v", c.Cluster, c.silence)
			return
		case <-ctx.Done():
			return
		}
	}
}

// answers connects to each server of a list and returns nil when one answers.
func answers(ctx context.Context, servers string) (err error) {
	for _, s := range strings.Split(servers, ",") {
		host := s
		if u, e := url.Parse(strings.TrimSpace(s)); e == nil && u.Host != "" {
			host = u.Host
		}
		if _, _, e := net.SplitHostPort(host); e != nil {
			host = net.JoinHostPort(host, natsPort)
		}
		if err = dial(ctx, host); err == nil {
			return nil
		}
	}
	return err
}

// dial connects to a TCP address and closes the connection.
func dial(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", address)
	if err == nil {
		err = conn.Close()
	}
	return err
}
