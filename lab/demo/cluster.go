package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Stages of the children, in starting order.
const (
	stageAgents = iota
	stageEngines
	stageRouter
)

// readyTimeout bounds a child's start on a busy machine.
const readyTimeout = 20 * time.Second

// stepBase is an engine's shortest step, which is the time between two tokens of
// output: that of a mid-sized model on one large GPU.
const stepBase = 20 * time.Millisecond

// maxSocketPath is what fits a Unix socket address.
const maxSocketPath = 107

// clusterSpec says what to start.
type clusterSpec struct {
	natsURL string
	// name keeps this cluster's subjects apart from those of the run before.
	name                    string
	nodes, engines          int
	blockSize, deviceBlocks int
	hostBytes, diskBytes    uint64
	dropFrames              int
	seed                    uint64
	speedUp                 float64
	prefillRate             int
	// lookupWait is how long an engine waits for blocks to come from disk, in real
	// time.
	lookupWait time.Duration
	// mode is how the router chooses; empty starts no router.
	mode string
	dirs runDirs
}

// natsEnv tells a child the NATS server. Its URL holds a token, which other users
// could read from a command line.
func (s *clusterSpec) natsEnv() []string { return []string{"BLOCKYARD_NATS=" + s.natsURL} }

// agentNode is a started agent; the endpoint is its admin API, control what
// operators use.
type agentNode struct {
	endpoint
	control endpoint
	socket  string
}

// demoCluster is what was started; the supervisor stops it.
type demoCluster struct {
	agents  []*agentNode
	engines []*engine
	router  endpoint // zero without one
	control endpoint // the router's, for operators
}

// routed reports whether there is a router.
func (c *demoCluster) routed() bool { return c.router != endpoint{} }

// startCluster starts agents, engines and router, each when those it needs are
// ready.
func startCluster(ctx context.Context, sup *supervisor, spec clusterSpec) (*demoCluster, error) {
	c := new(demoCluster)
	for i := range spec.nodes {
		a, err := startAgent(ctx, sup, spec, i+1)
		if err != nil {
			return nil, err
		}
		c.agents = append(c.agents, a)
	}
	for i := range spec.engines {
		e, err := startEngine(ctx, sup, spec, i+1, c.agents[i%len(c.agents)].socket)
		if err != nil {
			return nil, err
		}
		c.engines = append(c.engines, e)
	}
	if spec.mode == "" {
		return c, nil
	}
	var ready struct {
		HTTP    string `json:"http"`
		Control string `json:"control"`
	}
	err := sup.start(ctx, processSpec{
		Name: "router", Stage: stageRouter, ReadyTimeout: readyTimeout, Env: spec.natsEnv(),
		Args: []string{
			"router", "--cluster=" + spec.name, "--http=127.0.0.1:0", "--control=127.0.0.1:0",
			"--mode=" + spec.mode, "--seed=" + strconv.FormatUint(spec.seed, 10),
		},
	}, &ready)
	c.router, c.control = endpoint{"router", "http://" + ready.HTTP}, endpoint{"router", "http://" + ready.Control}
	return c, err
}

func startAgent(ctx context.Context, sup *supervisor, spec clusterSpec, n int) (*agentNode, error) {
	process, name := "agent-"+strconv.Itoa(n), "node-"+strconv.Itoa(n)
	socket := filepath.Join(spec.dirs.work, name+".sock")
	if len(socket) > maxSocketPath {
		return nil, fmt.Errorf("socket %s: its %d bytes exceed %d; choose a shorter --dir", socket, len(socket), maxSocketPath)
	}
	host, disk := filepath.Join(spec.dirs.host, name), filepath.Join(spec.dirs.work, name+"-disk")
	for _, dir := range []string{host, disk} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	var ready struct {
		Socket  string `json:"socket"`
		Admin   string `json:"admin"`
		Control string `json:"control"`
	}
	err := sup.start(ctx, processSpec{
		Name: process, Stage: stageAgents, ReadyTimeout: readyTimeout, Env: spec.natsEnv(),
		Args: []string{
			"agent", "--node=" + name, "--socket=" + socket, "--admin=127.0.0.1:0", "--control=127.0.0.1:0",
			"--cluster=" + spec.name,
			"--host-dir=" + host, "--host-size=" + decimal(spec.hostBytes),
			"--disk-dir=" + disk, "--disk-size=" + decimal(spec.diskBytes),
			"--extent-size=" + decimal(extentBytes),
			// Minutes of a cache's life: everything goes to disk at once, and nothing
			// is left behind.
			"--disk-filter=none", "--discard-host",
		},
	}, &ready)
	return &agentNode{
		endpoint: endpoint{process, "http://" + ready.Admin}, control: endpoint{process, "http://" + ready.Control}, socket: ready.Socket,
	}, err
}

func startEngine(ctx context.Context, sup *supervisor, spec clusterSpec, n int, socket string) (*engine, error) {
	process := "engine-" + strconv.Itoa(n)
	var ready struct {
		HTTP string `json:"http"`
	}
	err := sup.start(ctx, processSpec{
		Name: process, Stage: stageEngines, ReadyTimeout: readyTimeout,
		Args: []string{
			"sim-engine", "--worker-id=" + strconv.Itoa(n), "--agent-socket=" + socket, "--http=127.0.0.1:0",
			"--block-size=" + strconv.Itoa(spec.blockSize), "--device-blocks=" + strconv.Itoa(spec.deviceBlocks),
			"--layers=" + strconv.Itoa(modelLayers), "--outer-dim=" + strconv.Itoa(modelOuterDim),
			"--inner-dim=" + strconv.Itoa(innerDim(spec.blockSize)),
			"--prefill-tokens-per-second=" + strconv.Itoa(spec.prefillRate), "--step-base=" + stepBase.String(),
			"--lookup-wait=" + spec.lookupWait.String(),
			"--speed-up=" + strconv.FormatFloat(spec.speedUp, 'g', -1, 64),
			"--drop-frames=" + strconv.Itoa(spec.dropFrames),
			"--seed=" + strconv.FormatUint(spec.seed+uint64(n), 10),
		},
	}, &ready)
	return &engine{endpoint: endpoint{process, "http://" + ready.HTTP}, worker: uint64(n)}, err
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }

// awaitWorkers returns when the router knows every engine.
func (c *demoCluster) awaitWorkers(ctx context.Context, calls *caller) error {
	known := 0
	err := poll(ctx, readyTimeout, func() (bool, error) {
		var feeds []routerFeed
		if err := calls.get(ctx, c.router, "/v1/feeds", &feeds); err != nil {
			return false, err
		}
		known = 0
		for _, f := range feeds {
			if strings.HasPrefix(f.Owner, "worker ") {
				known++
			}
		}
		return known >= len(c.engines), nil
	})
	if err != nil {
		return fmt.Errorf("router knows %d of %d engines: %w", known, len(c.engines), err)
	}
	return nil
}

// pollInterval is the time between two looks at something that takes a moment.
const pollInterval = 50 * time.Millisecond

// poll calls done until it says true, or fails, or patience or ctx end.
func poll(ctx context.Context, patience time.Duration, done func() (bool, error)) error {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-timeout.C:
			return fmt.Errorf("not within %s", patience)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
