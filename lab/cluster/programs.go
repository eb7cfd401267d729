package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// maxSocketPath is what fits a Unix socket address.
const maxSocketPath = 107

// AgentOptions say what one agent is.
type AgentOptions struct {
	// Node is its name; an agent that is started again with the same name finds the
	// tiers of the one before.
	Node string
	// HostBytes and DiskBytes are its tiers, ExtentBytes what they grow by.
	HostBytes, DiskBytes, ExtentBytes uint64
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

// StartAgent starts an agent that publishes on the rig's NATS server.
func (r *Rig) StartAgent(ctx context.Context, o AgentOptions) (*Agent, error) {
	socket := filepath.Join(r.dir, o.Node+".sock")
	if len(socket) > maxSocketPath {
		return nil, fmt.Errorf("socket %s: its %d bytes exceed %d; choose a shorter directory", socket, len(socket), maxSocketPath)
	}
	host, disk := filepath.Join(r.host, o.Node), filepath.Join(r.dir, o.Node+"-disk")
	if err := errors.Join(os.MkdirAll(host, 0o700), os.MkdirAll(disk, 0o700)); err != nil {
		return nil, err
	}
	p, err := r.Start(o.Node, []string{
		r.o.Product, "agent", "--node=" + o.Node, "--socket=" + socket, "--admin=127.0.0.1:0", "--control=127.0.0.1:0", "--cluster=" + r.cluster,
		"--host-dir=" + host, "--host-size=" + decimal(o.HostBytes),
		"--disk-dir=" + disk, "--disk-size=" + decimal(o.DiskBytes),
		"--extent-size=" + decimal(o.ExtentBytes), "--disk-filter=none",
	}, r.natsEnv(agentUser))
	if err != nil {
		return nil, err
	}
	var ready struct {
		Admin   string `json:"admin"`
		Control string `json:"control"`
	}
	if err := p.ready(ctx, &ready); err != nil {
		return nil, err
	}
	return &Agent{
		Process: p, Endpoint: r.endpoint(o.Node, ready.Admin), Control: r.endpoint(o.Node, ready.Control),
		AgentOptions: o, Socket: socket,
	}, nil
}

// EngineOptions say what one simulated engine is.
type EngineOptions struct {
	Worker uint64
	// Socket is its agent's.
	Socket string
	// BlockSize is in tokens, DeviceBlocks the size of its cache.
	BlockSize, DeviceBlocks int
	// DropFrames is how many event frames it leaves out, spread over the first eight
	// times as many; BufferSteps is how many it can replay.
	DropFrames, BufferSteps int
	SpeedUp                 float64
	Seed                    uint64
}

// Engine is a running simulated engine; Endpoint is its HTTP interface.
type Engine struct {
	*Process
	Endpoint
	EngineOptions
}

// StartEngine starts an engine.
func (r *Rig) StartEngine(ctx context.Context, o EngineOptions) (*Engine, error) {
	name := "engine-" + decimal(o.Worker)
	p, err := r.Start(name, []string{
		r.o.Lab, "sim-engine", "--worker-id=" + decimal(o.Worker), "--agent-socket=" + o.Socket, "--http=127.0.0.1:0",
		"--block-size=" + strconv.Itoa(o.BlockSize), "--device-blocks=" + strconv.Itoa(o.DeviceBlocks),
		"--layers=1", "--outer-dim=1", "--inner-dim=16",
		"--drop-frames=" + strconv.Itoa(o.DropFrames), "--buffer-steps=" + strconv.Itoa(o.BufferSteps),
		"--speed-up=" + strconv.FormatFloat(o.SpeedUp, 'g', -1, 64),
		"--seed=" + decimal(o.Seed),
	}, nil)
	if err != nil {
		return nil, err
	}
	var ready struct {
		HTTP string `json:"http"`
	}
	if err := p.ready(ctx, &ready); err != nil {
		return nil, err
	}
	return &Engine{Process: p, Endpoint: r.endpoint(name, ready.HTTP), EngineOptions: o}, nil
}

// Router is a running router. Control is what it serves to operators.
type Router struct {
	*Process
	Endpoint
	Control Endpoint
}

// StartRouter starts a router that follows the rig's agents.
func (r *Rig) StartRouter(ctx context.Context) (*Router, error) {
	p, err := r.Start("router", []string{r.o.Product, "router", "--cluster=" + r.cluster, "--http=127.0.0.1:0", "--control=127.0.0.1:0"}, r.natsEnv(routerUser))
	if err != nil {
		return nil, err
	}
	var ready struct {
		HTTP    string `json:"http"`
		Control string `json:"control"`
	}
	if err := p.ready(ctx, &ready); err != nil {
		return nil, err
	}
	return &Router{Process: p, Endpoint: r.endpoint("router", ready.HTTP), Control: r.endpoint("router", ready.Control)}, nil
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }
