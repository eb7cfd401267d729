package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/blockyard-ai/blockyard/agent"
)

// agentCmd runs the node agent until it is told to stop.
type agentCmd struct {
	Node       string   `help:"Name of this node, unique in the cluster and the same at every start. Default: the host name." env:"BLOCKYARD_NODE" placeholder:"NAME"`
	Socket     string   `help:"Unix socket that engines connect to." default:"/run/blockyard/agent.sock" type:"path" env:"BLOCKYARD_SOCKET"`
	Admin      string   `help:"Address of the HTTP server for health, metrics and dumps. It is not protected: keep it on loopback." default:"127.0.0.1:0" env:"BLOCKYARD_ADMIN"`
	NATS       string   `name:"nats" help:"NATS server that events are published to. Without one nothing is published." env:"BLOCKYARD_NATS" placeholder:"URL"`
	Cluster    string   `help:"Name that keeps deployments on one NATS apart." default:"default" env:"BLOCKYARD_CLUSTER"`
	HostDir    string   `help:"Directory of the host tier; it should be on tmpfs or hugetlbfs." default:"/dev/shm/blockyard" type:"path" env:"BLOCKYARD_HOST_DIR"`
	HostSize   Size     `help:"Size of the host tier, such as 64GiB; 0 turns it off." default:"1GiB" env:"BLOCKYARD_HOST_SIZE"`
	DiskDir    string   `help:"Directory of the disk tier." default:"/var/lib/blockyard" type:"path" env:"BLOCKYARD_DISK_DIR"`
	DiskSize   Size     `help:"Size of the disk tier, such as 1TiB; 0 turns it off." default:"0" env:"BLOCKYARD_DISK_SIZE"`
	ExtentSize Size     `help:"What a pool grows by, at most 1GiB." default:"64MiB" env:"BLOCKYARD_EXTENT_SIZE"`
	AllowUID   []uint32 `name:"allow-uid" help:"User whose engines may connect; may be given several times. Default: the agent's own user and root." env:"BLOCKYARD_ALLOW_UID" placeholder:"UID"`
}

// Run starts the agent, says that it is ready and serves until ctx ends.
func (c *agentCmd) Run(ctx context.Context) error {
	log, err := newLogger("agent")
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // a terminal cannot be synced, and there is nothing to do about it
	node := c.Node
	if node == "" {
		if node, err = os.Hostname(); err != nil {
			return fmt.Errorf("node name: %w", err)
		}
	}
	a, err := agent.New(ctx, agent.Config{
		Node: node, Socket: c.Socket, Admin: c.Admin, NATSURL: c.NATS, Cluster: c.Cluster,
		HostDir: c.HostDir, HostBytes: uint64(c.HostSize), DiskDir: c.DiskDir, DiskBytes: uint64(c.DiskSize),
		ExtentBytes: uint64(c.ExtentSize), AllowUIDs: c.AllowUID,
	}, log)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil // told to stop while it started
	}
	if err != nil {
		return err
	}
	ready := struct {
		Ready  bool   `json:"ready"`
		Socket string `json:"socket"`
		Admin  string `json:"admin"`
	}{true, a.SocketPath(), a.AdminAddr()}
	if err := writeReady(ready); err != nil {
		return errors.Join(err, a.Close())
	}
	return a.Run(ctx)
}
