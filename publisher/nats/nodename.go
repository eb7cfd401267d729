package nats

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// nameTimeout is how long an agent waits for another one of the same node name. One
// whose process or host is gone does not answer.
const nameTimeout = time.Second

// claimName refuses a node name that another agent of the cluster answers for, and
// answers for it from now on. Two agents that start at the same moment both get it;
// so do those that cannot reach each other. Routers report what comes of that.
func (n *Conn) claimName(ctx context.Context) error {
	if n.opt.Node == "" {
		return nil
	}
	subject := kvevent.NodeSubject(n.opt.Cluster, n.opt.Node)
	self := selfClaim(n.opt.Node)
	if n.Connected() {
		if err := n.askForName(ctx, subject, self); err != nil {
			return err
		}
	}
	_, err := n.conn.Subscribe(subject, func(m *nats.Msg) {
		other, err := kvevent.DecodeNodeClaim(m.Data)
		if err != nil || m.Reply == "" || other.Node != n.opt.Node {
			return
		}
		n.nameClaims.Add(1)
		n.log.Warn("another agent was refused this node's name", zap.String("node", other.Node),
			zap.String("host", other.Host), zap.Uint64("pid", other.PID))
		if err := n.conn.Publish(m.Reply, kvevent.AppendNodeClaim(nil, &self)); err != nil {
			n.log.Warn("the other agent is not told", zap.Error(err))
		}
	})
	if err != nil {
		return fmt.Errorf("nats subscribe to %s: %w", subject, err)
	}
	if n.Connected() {
		// After the flush the next agent that asks is answered. A slow server takes the
		// subscription later, which is no reason not to start.
		if err := n.conn.FlushTimeout(nameTimeout); err != nil {
			n.log.Info("the server has not taken the claim of this node's name yet", zap.String("node", n.opt.Node), zap.Error(err))
		}
	}
	return nil
}

// askForName asks whether another agent has the name. No answer is none.
func (n *Conn) askForName(ctx context.Context, subject string, self kvevent.NodeClaim) error {
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	m, err := n.conn.RequestWithContext(ctx, subject, kvevent.AppendNodeClaim(nil, &self))
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil
	case err != nil:
		n.log.Info("whoever has this node's name does not answer", zap.String("node", n.opt.Node), zap.Error(err))
		return nil
	}
	other, err := kvevent.DecodeNodeClaim(m.Data)
	if err != nil {
		return fmt.Errorf("node %q: another agent of cluster %q has this name: %w", n.opt.Node, n.opt.Cluster, err)
	}
	return fmt.Errorf("node %q: another agent of cluster %q has this name, process %d on host %q; want a name for each node",
		n.opt.Node, n.opt.Cluster, other.PID, other.Host)
}

func selfClaim(node string) kvevent.NodeClaim {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return kvevent.NodeClaim{Node: node, Host: host, PID: uint64(os.Getpid())}
}
