package soak

import (
	"context"
	"time"
)

// fault breaks something, and mends it before it returns.
type fault func(w *world, ctx context.Context) error

// faults are all there are. Each is taken once before one is taken again.
func faults() []fault {
	return []fault{
		(*world).restartBroker, (*world).restartAgent, (*world).restartEngine, (*world).restartRouter,
		(*world).stopRouter, (*world).restartAgent,
	}
}

// restartBroker kills the NATS server, and starts it again after a while.
func (w *world) restartBroker(ctx context.Context) error {
	w.broker.Kill()
	if err := pause(ctx, w.upTo(maxBrokerAway)); err != nil {
		return err
	}
	var err error
	w.broker, err = w.rig.StartBroker(ctx)
	w.tally.brokerRestarts++
	return err
}

// restartAgent kills an agent, and starts it again after a while.
func (w *world) restartAgent(ctx context.Context) error {
	return w.replaceAgent(ctx, w.rng.IntN(nodes), w.upTo(maxAgentAway))
}

func (w *world) replaceAgent(ctx context.Context, n int, away time.Duration) error {
	a := w.agents[n]
	w.countAgent(ctx, a)
	a.Kill()
	if err := pause(ctx, away); err != nil {
		return err
	}
	next, err := w.rig.StartAgent(ctx, a.AgentOptions)
	if err != nil {
		return err
	}
	w.agents[n] = next
	w.tally.agentRestarts++
	return nil
}

// restartEngine kills an engine and starts another one in its place.
func (w *world) restartEngine(ctx context.Context) error {
	i := w.rng.IntN(engines)
	e := w.engines[i].Load()
	w.countEngine(ctx, e)
	e.Kill()
	w.tally.engineRestarts++
	return w.startEngine(ctx, i)
}

// restartRouter kills the router; the next one joins late.
func (w *world) restartRouter(ctx context.Context) error {
	w.router.Kill()
	var err error
	w.router, err = w.rig.StartRouter(ctx)
	w.tally.routerRestarts++
	return err
}

// stopRouter has the router take nothing for a while.
func (w *world) stopRouter(ctx context.Context) error {
	w.router.Stop()
	err := pause(ctx, w.upTo(maxRouterStopped))
	w.router.Continue()
	w.tally.routerStops++
	return err
}

// resetEngine empties the prefix cache of an engine that nobody uses; one that is
// still busy refuses.
func (w *world) resetEngine(ctx context.Context) error {
	return w.endpoint(w.rng.IntN(engines)).Post(ctx, "/v1/reset_prefix_cache", struct{}{}, nil)
}

// upTo is a random time below d.
func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d))) }

// pause waits for d; the error is that ctx has ended.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
