package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/simulate"
)

// world is the processes of a run, what clients know, and the figures.
type world struct {
	*cluster.Cluster
	o         *Options
	rng       *rand.Rand
	documents [][]uint32
	ledger    *ledger

	broker  *cluster.Process
	agents  []*cluster.Agent
	engines []*cluster.Engine

	mu      sync.Mutex
	routers []*instance
	notes   []string

	tally tally
	// simulated has the ratios of the times to the first token, nil without a simulation.
	simulated *simulate.Fleet
}

// tally has the figures of a run.
type tally struct {
	rounds, kills, compared                   int
	routerKills, agentKills, brokerKills      int
	routerStops                               int
	diverged, lost, doubleBooked              int
	forwarded, restatements, messages, missed uint64
	// settled is the longest time from the end of the load until all routers agreed.
	settled time.Duration
}

// maxNotes bounds the notes of what was wrong.
const maxNotes = 20

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.notes) < maxNotes {
		w.notes = append(w.notes, fmt.Sprintf(format, args...))
	}
}

// newWorld starts NATS, agents, engines and routers.
func newWorld(ctx context.Context, c *cluster.Cluster, o *Options) (*world, error) {
	w := &world{Cluster: c, o: o, rng: rand.New(rand.NewPCG(o.Seed, 0)), ledger: newLedger()}
	for range documents {
		doc := make([]uint32, documentBlocks*blockSize)
		for i := range doc {
			doc[i] = w.rng.Uint32N(vocabulary)
		}
		w.documents = append(w.documents, doc)
	}
	var err error
	if w.broker, err = c.StartNATS(ctx); err != nil {
		return nil, err
	}
	for n := range nodes {
		a, err := c.StartAgent(ctx, cluster.AgentOptions{Node: "node-" + strconv.Itoa(n+1),
			HostBytes: hostBytes, DiskBytes: diskBytes, ExtentBytes: extentBytes})
		if err != nil {
			return nil, err
		}
		w.agents = append(w.agents, a)
	}
	for i := range engines {
		e, err := c.StartEngine(ctx, cluster.EngineOptions{Worker: uint64(i) + 1, Socket: w.agents[i%nodes].Socket,
			BlockSize: blockSize, DeviceBlocks: deviceBlocks, SpeedUp: speedUp, Seed: uint64(i)})
		if err != nil {
			return nil, err
		}
		w.engines = append(w.engines, e)
	}
	w.routers = make([]*instance, o.Routers)
	for i := range w.routers {
		if err := w.startRouter(ctx, i); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// startRouter starts router i and waits until it knows the workers.
func (w *world) startRouter(ctx context.Context, i int) error {
	r, err := w.StartNamedRouter(ctx, "router-"+strconv.Itoa(i+1), "--router-replica-sync", "--router-track-output-blocks")
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.routers[i] = &instance{Router: r}
	return nil
}

// router returns a random router, which may be one that was just killed.
func (w *world) router(rng *rand.Rand) *instance {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.routers[rng.IntN(len(w.routers))]
}

// all returns the present routers.
func (w *world) all() []*instance {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*instance{}, w.routers...)
}

// engineOf returns the engine of a worker, nil for an unknown worker.
func (w *world) engineOf(worker uint64) *cluster.Engine {
	if worker < 1 || worker > uint64(len(w.engines)) {
		return nil
	}
	return w.engines[worker-1]
}

// fault kills something and starts it again before it returns.
type fault func(w *world, ctx context.Context) error

// faults returns all faults. Each is taken once before one is taken again.
func faults() []fault {
	return []fault{(*world).killRouter, (*world).killAgent, (*world).stopRouter, (*world).killBroker, (*world).killRouter}
}

func (w *world) killRouter(ctx context.Context) error {
	i := w.rng.IntN(len(w.routers))
	r := w.all()[i]
	w.count(ctx, r)
	r.Kill()
	r.ended.Store(true) // after the end, so that no live router answers for it
	w.tally.routerKills++
	if err := cluster.Wait(ctx, w.away()); err != nil {
		return err
	}
	return w.startRouter(ctx, i)
}

// stopRouter ends a router in order (SIGTERM). It answers what it has begun, and says goodbye to the others.
func (w *world) stopRouter(ctx context.Context) error {
	i := w.rng.IntN(len(w.routers))
	r := w.all()[i]
	w.count(ctx, r)
	r.ended.Store(true) // before the end: from its goodbye on nobody knows its requests
	if err := r.End(ctx, stopTime); err != nil {
		return err
	}
	w.tally.routerStops++
	if err := cluster.Wait(ctx, w.away()); err != nil {
		return err
	}
	return w.startRouter(ctx, i)
}

func (w *world) killAgent(ctx context.Context) error {
	i := w.rng.IntN(len(w.agents))
	a := w.agents[i]
	a.Kill()
	w.tally.agentKills++
	if err := cluster.Wait(ctx, w.away()/4); err != nil {
		return err
	}
	next, err := w.StartAgent(ctx, a.AgentOptions)
	if err == nil {
		w.agents[i] = next
	}
	return err
}

func (w *world) killBroker(ctx context.Context) error {
	w.broker.Kill()
	w.tally.brokerKills++
	if err := cluster.Wait(ctx, w.away()); err != nil {
		return err
	}
	var err error
	w.broker, err = w.StartNATS(ctx)
	return err
}

// away returns a random time for which a killed process is away.
func (w *world) away() time.Duration { return time.Duration(w.rng.Int64N(int64(maxAway))) }
