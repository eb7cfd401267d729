package demo

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// stepBase is an engine's shortest step, which is the time between two tokens of
// output: that of a mid-sized model on one large GPU.
const stepBase = 20 * time.Millisecond

// clusterSpec says which processes to start.
type clusterSpec struct {
	cluster.Options
	nodes, engines          int
	blockSize, deviceBlocks int
	hostBytes, diskBytes    uint64
	dropFrames              int
	// window is the sliding window of a hybrid model in tokens, 0 without one.
	window      int
	seed        uint64
	speedUp     float64
	prefillRate int
	// lookupWait bounds the wait of a lookup for the disk, in real time.
	lookupWait time.Duration
	// mode is the router's --mode; empty starts no router.
	mode string
}

// demoCluster is agents, engines and perhaps a router.
type demoCluster struct {
	*cluster.Cluster
	agents  []*cluster.Agent
	engines []*engine
	router  *cluster.Router // nil without one
}

// parts returns the processes that are compared at the end.
func (c *demoCluster) parts() cluster.Parts {
	p := cluster.Parts{Agents: c.agents, Router: c.router, Repaired: true}
	for _, e := range c.engines {
		p.Engines = append(p.Engines, e.Endpoint)
	}
	return p
}

// start starts agents, engines and router in this order, each when the one before it is ready.
// Engine i belongs to agent i modulo the number of agents. A spec without a mode has no router.
func (c *demoCluster) start(ctx context.Context, spec clusterSpec) (err error) {
	for i := range spec.nodes {
		a, err := c.StartAgent(ctx, cluster.AgentOptions{
			Node: "node-" + strconv.Itoa(i+1), HostBytes: spec.hostBytes, DiskBytes: spec.diskBytes, ExtentBytes: extentBytes,
			Flags: []string{"--discard-host"}, // nothing is left behind
		})
		if err != nil {
			return err
		}
		c.agents = append(c.agents, a)
	}
	for i := range spec.engines {
		e, err := c.StartEngine(ctx, cluster.EngineOptions{
			Worker: uint64(i) + 1, Socket: c.agents[i%len(c.agents)].Socket,
			BlockSize: spec.blockSize, DeviceBlocks: spec.deviceBlocks,
			Layers: modelLayers, Outer: modelOuterDim, Inner: innerDim(spec.blockSize),
			DropFrames: spec.dropFrames, SpeedUp: spec.speedUp, Seed: spec.seed + uint64(i) + 1,
			Flags: []string{
				"--prefill-tokens-per-second=" + strconv.Itoa(spec.prefillRate), "--step-base=" + stepBase.String(),
				"--lookup-wait=" + spec.lookupWait.String(), "--window=" + strconv.Itoa(spec.window),
			},
		})
		if err != nil {
			return err
		}
		c.engines = append(c.engines, &engine{Engine: e})
	}
	if spec.mode == "" {
		return nil
	}
	c.router, err = c.StartRouter(ctx, "--mode="+spec.mode, "--seed="+strconv.FormatUint(spec.seed, 10))
	return err
}

// workersTime bounds the wait for the router to hear of every engine.
const workersTime = 20 * time.Second

// awaitWorkers waits until the router knows every engine. The error says how many it knows after
// workersTime.
func (c *demoCluster) awaitWorkers(ctx context.Context) error {
	known := 0
	err := cluster.Until(ctx, workersTime, 50*time.Millisecond, func() (bool, error) {
		var feeds []cluster.RouterFeed
		if err := c.router.Get(ctx, "/v1/feeds", &feeds); err != nil {
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

// settled is a cluster at rest.
type settled struct{ *cluster.Picture }

// settle waits until the cluster is at rest, for the limit at most.
func (c *demoCluster) settle(ctx context.Context, l limits) (settled, error) {
	p, err := c.parts().Settle(ctx, l.settle)
	if err != nil {
		return settled{}, err
	}
	return settled{p}, nil
}

// fillReport copies the processes' counters, and the comparison of the router's index with the
// owners' blocks, into the report of a run.
func (s settled) fillReport(r *RunReport) {
	for i := range s.Engines {
		st := &s.Engines[i].Stats
		r.BlocksVerified += st.BlocksVerified
		r.WrongBytes += st.WrongBytes
		r.LoadsFailed += st.LoadsFailed
		r.FramesDropped += st.FramesDropped
		r.Resets += st.Resets
	}
	for i := range s.Agents {
		r.Events.add(EventCounts(s.Agents[i].Events))
	}
	r.Settled, r.unsettled = s.Moving == "", s.Moving
	r.Unsound = s.Inexact
	r.Diverged, r.Compared, r.divergence = s.Diff.Diverged(), s.Diff.Compared, s.Diff.First
}

// wrongBytes returns the wrong bytes that the engines counted.
func (s settled) wrongBytes() (n uint64) {
	for i := range s.Engines {
		n += s.Engines[i].Stats.WrongBytes
	}
	return n
}

// corruptReads returns how many blocks the agents read from disk and refused because of wrong bytes.
func (s settled) corruptReads() (n uint64) {
	for i := range s.Agents {
		for _, p := range s.Agents[i].Pools {
			n += p.CorruptReads
		}
	}
	return n
}

// byHash returns the blocks of all pools, with their places in host memory and on disk, by
// SequenceHash.
func (s settled) byHash() map[string]cluster.Block {
	m := make(map[string]cluster.Block)
	for _, p := range s.Pools {
		for _, b := range p.Blocks {
			m[b.Hash] = b
		}
	}
	return m
}
