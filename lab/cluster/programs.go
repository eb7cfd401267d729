package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// maxSocketPath is the longest path of a Unix socket address.
const maxSocketPath = 107

// Stages of Stop, in the order of starting.
const (
	stageNATS = iota
	stageAgents
	stageEngines
	stageRouter
)

// AgentOptions configure one agent.
type AgentOptions struct {
	// Node is its name. An agent with the name of an earlier one finds that agent's tiers.
	Node string
	// HostBytes and DiskBytes are the sizes of its tiers, ExtentBytes that of an extent.
	HostBytes, DiskBytes, ExtentBytes uint64
	// Flags are further flags of "blockyard agent".
	Flags []string
}

// Agent is a running agent; Endpoint is its admin interface.
type Agent struct {
	*Process
	Endpoint
	AgentOptions
	// Control is its interface for operators.
	Control Endpoint
	// Socket is where engines connect.
	Socket string
}

// StartAgent starts an agent, which publishes on the NATS server if there is one, and waits until
// it is ready. Its disk tier takes every block, because a scenario is too short for blocks to be
// used often.
func (c *Cluster) StartAgent(ctx context.Context, o AgentOptions) (*Agent, error) {
	d := c.o.Dirs
	socket := filepath.Join(d.Work, o.Node+".sock")
	if len(socket) > maxSocketPath {
		return nil, fmt.Errorf("socket %s: its %d bytes exceed %d; choose a shorter --dir", socket, len(socket), maxSocketPath)
	}
	host, disk := filepath.Join(d.Host, o.Node), filepath.Join(d.Work, o.Node+"-disk")
	if err := errors.Join(os.MkdirAll(host, 0o700), os.MkdirAll(disk, 0o700)); err != nil {
		return nil, err
	}
	var ready struct {
		Admin   string `json:"admin"`
		Control string `json:"control"`
	}
	p, err := c.StartReady(ctx, Spec{
		Name: o.Node, Stage: stageAgents, Env: c.natsEnv(agentUser), Command: append([]string{
			c.o.Product, "agent", "--node=" + o.Node, "--socket=" + socket, "--admin=127.0.0.1:0", "--control=127.0.0.1:0",
			"--cluster=" + c.o.Name, "--host-dir=" + host, "--host-size=" + decimal(o.HostBytes),
			"--disk-dir=" + disk, "--disk-size=" + decimal(o.DiskBytes),
			"--extent-size=" + decimal(o.ExtentBytes), "--disk-filter=none",
		}, o.Flags...),
	}, &ready)
	if err != nil {
		return nil, err
	}
	return &Agent{
		Process: p, Endpoint: c.client.At(o.Node, ready.Admin), Control: c.client.At(o.Node, ready.Control),
		AgentOptions: o, Socket: socket,
	}, nil
}

// EngineOptions configure one simulated engine.
type EngineOptions struct {
	Worker uint64
	// Socket is its agent's.
	Socket string
	// BlockSize is in tokens, DeviceBlocks the size of its cache.
	BlockSize, DeviceBlocks int
	// Layers, Outer and Inner are the geometry of a block; defaults 1, 1 and 16.
	Layers, Outer, Inner int
	// DropFrames is the number of event frames that it does not send.
	DropFrames int
	SpeedUp    float64
	Seed       uint64
	// Flags are further flags of "blockyard-lab sim-engine".
	Flags []string
}

// Engine is a running simulated engine; Endpoint is its HTTP interface.
type Engine struct {
	*Process
	Endpoint
	EngineOptions
}

// StartEngine starts a simulated engine, and waits until it serves requests.
func (c *Cluster) StartEngine(ctx context.Context, o EngineOptions) (*Engine, error) {
	name := "engine-" + decimal(o.Worker)
	var ready struct {
		HTTP string `json:"http"`
	}
	p, err := c.StartReady(ctx, Spec{
		Name: name, Stage: stageEngines, Command: append([]string{
			c.o.Lab, "sim-engine", "--worker-id=" + decimal(o.Worker), "--agent-socket=" + o.Socket, "--http=127.0.0.1:0",
			"--block-size=" + strconv.Itoa(o.BlockSize), "--device-blocks=" + strconv.Itoa(o.DeviceBlocks),
			"--layers=" + strconv.Itoa(cmp.Or(o.Layers, 1)), "--outer-dim=" + strconv.Itoa(cmp.Or(o.Outer, 1)),
			"--inner-dim=" + strconv.Itoa(cmp.Or(o.Inner, 16)),
			"--drop-frames=" + strconv.Itoa(o.DropFrames),
			"--speed-up=" + strconv.FormatFloat(o.SpeedUp, 'g', -1, 64), "--seed=" + decimal(o.Seed),
		}, o.Flags...),
	}, &ready)
	if err != nil {
		return nil, err
	}
	return &Engine{Process: p, Endpoint: c.client.At(name, ready.HTTP), EngineOptions: o}, nil
}

// StartHelper starts a command of the lab program that publishes as agents do, and waits until it is ready.
func (c *Cluster) StartHelper(ctx context.Context, name string, command ...string) (*Process, error) {
	var ready struct{}
	return c.StartReady(ctx, Spec{Name: name, Stage: stageAgents, Env: c.natsEnv(agentUser), Command: append([]string{c.o.Lab}, command...)}, &ready)
}

// Router is a running router. Control is its interface for operators.
type Router struct {
	*Process
	Endpoint
	Control Endpoint
}

// StartRouter starts a router that follows the cluster's agents, and waits until it is ready.
// flags are further flags of "blockyard router".
func (c *Cluster) StartRouter(ctx context.Context, flags ...string) (*Router, error) {
	return c.StartNamedRouter(ctx, "router", flags...)
}

// StartNamedRouter starts one of several routers: see StartRouter.
func (c *Cluster) StartNamedRouter(ctx context.Context, name string, flags ...string) (*Router, error) {
	var ready struct {
		HTTP    string `json:"http"`
		Control string `json:"control"`
	}
	p, err := c.StartReady(ctx, Spec{
		Name: name, Stage: stageRouter, Env: c.natsEnv(routerUser),
		Command: append([]string{c.o.Product, "router", "--cluster=" + c.o.Name, "--http=127.0.0.1:0", "--control=127.0.0.1:0"}, flags...),
	}, &ready)
	if err != nil {
		return nil, err
	}
	return &Router{Process: p, Endpoint: c.client.At(name, ready.HTTP), Control: c.client.At(name, ready.Control)}, nil
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }
