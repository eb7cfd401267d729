package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/engine"
)

// world is the processes of a run and the counters of their earlier lives.
type world struct {
	*cluster.Cluster
	rng    *rand.Rand
	load   *load
	broker *cluster.Process
	agents []*cluster.Agent
	// engines are replaced while the load reads them.
	engines [engines]atomic.Pointer[cluster.Engine]
	router  *cluster.Router
	lives   uint64 // of engines
	tally   tally
	// wanted bounds the time to rest.
	wanted time.Duration
}

// tally has the figures of a run.
type tally struct {
	// events is the number of events that agents published. compared counts (owner,
	// block, tier) triples, lost those that the router lacks, diverged those on one
	// side only.
	events, compared, lost, diverged uint64
	dropped, resets                  uint64 // of engines
	brokerRestarts, agentRestarts    uint64
	engineRestarts, routerRestarts   uint64
	routerStops, rounds              uint64
	// kept is the least share of device residency after an agent's restart; calm
	// counts these restarts, and beyond those when an engine's replay did not reach
	// back to its beginning.
	kept         float64
	calm, beyond uint64
	notes        []string // what was wrong, for people
}

// maxNotes bounds the notes in a report.
const maxNotes = 20

func (t *tally) note(format string, args ...any) {
	if len(t.notes) < maxNotes {
		t.notes = append(t.notes, fmt.Sprintf(format, args...))
	}
}

// newWorld starts NATS, agents, engines and a router. seed selects the faults and the load.
func newWorld(ctx context.Context, c *cluster.Cluster, seed uint64) (*world, error) {
	w := &world{Cluster: c, rng: rand.New(rand.NewPCG(seed, 0)), load: newLoad(seed), tally: tally{kept: 1}}
	var err error
	if w.broker, err = c.StartNATS(ctx); err != nil {
		return nil, err
	}
	for n := range nodes {
		a, err := c.StartAgent(ctx, cluster.AgentOptions{
			Node: "node-" + strconv.Itoa(n+1), HostBytes: hostBytes, DiskBytes: diskBytes, ExtentBytes: extentBytes,
		})
		if err != nil {
			return nil, err
		}
		w.agents = append(w.agents, a)
	}
	for i := range engines {
		if err := w.startEngine(ctx, i); err != nil {
			return nil, err
		}
	}
	w.router, err = c.StartRouter(ctx)
	return w, err
}

// startEngine starts engine i, which has another seed in each life, so that other frames are
// dropped.
func (w *world) startEngine(ctx context.Context, i int) error {
	w.lives++
	e, err := w.StartEngine(ctx, cluster.EngineOptions{
		Worker: uint64(i) + 1, Socket: w.agents[i%nodes].Socket,
		BlockSize: blockSize, DeviceBlocks: deviceBlocks, SpeedUp: speedUp,
		DropFrames: dropFrames, Seed: w.lives, Flags: []string{"--buffer-steps=" + strconv.Itoa(bufferSteps)},
	})
	if err == nil {
		w.engines[i].Store(e)
	}
	return err
}

// endpoint returns where engine i answers now.
func (w *world) endpoint(i int) cluster.Endpoint { return w.engines[i].Load().Endpoint }

// parts returns the processes that run now.
func (w *world) parts() cluster.Parts {
	p := cluster.Parts{Agents: w.agents, Router: w.router}
	for i := range w.engines {
		p.Engines = append(p.Engines, w.endpoint(i))
	}
	return p
}

// alive returns an error for a process that has ended although no fault ended it.
func (w *world) alive() error {
	procs := []*cluster.Process{w.broker, w.router.Process}
	for _, a := range w.agents {
		procs = append(procs, a.Process)
	}
	for i := range w.engines {
		procs = append(procs, w.engines[i].Load().Process)
	}
	for _, p := range procs {
		if p.Exited() {
			return fmt.Errorf("%s ended by itself", p.Name)
		}
	}
	return nil
}

// countAgent adds the counters of an agent before its kill or at the end. A process
// that does not answer adds nothing.
func (w *world) countAgent(ctx context.Context, a *cluster.Agent) {
	var s cluster.AgentStats
	if a.Get(ctx, "/v1/stats", &s) == nil {
		w.tally.events += s.Events.Out
	}
}

// countEngine does the same for an engine.
func (w *world) countEngine(ctx context.Context, e *cluster.Engine) {
	var s engine.State
	if e.Get(ctx, "/v1/state", &s) == nil {
		w.tally.dropped += s.Stats.FramesDropped
		w.tally.resets += s.Stats.Resets
	}
}
