package soak

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/engine"
)

// fault breaks something and mends it before it returns.
type fault func(w *world, ctx context.Context) error

// faults returns all faults. Each is taken once before one is taken again.
func faults() []fault {
	return []fault{
		(*world).restartBroker, (*world).restartAgent, (*world).restartEngine, (*world).restartRouter,
		(*world).stopRouter, (*world).restartAgent,
	}
}

// restartBroker kills the NATS server, and starts it again after a random time up to maxBrokerAway.
func (w *world) restartBroker(ctx context.Context) error {
	w.broker.Kill()
	if err := cluster.Wait(ctx, w.upTo(maxBrokerAway)); err != nil {
		return err
	}
	var err error
	w.broker, err = w.StartNATS(ctx)
	w.tally.brokerRestarts++
	return err
}

// restartAgent kills an agent, and starts it again after a while.
func (w *world) restartAgent(ctx context.Context) error {
	return w.replaceAgent(ctx, w.rng.IntN(nodes), w.upTo(maxAgentAway))
}

// replaceAgent kills agent n, waits for the time away, and starts the next agent with the same
// options and directories.
func (w *world) replaceAgent(ctx context.Context, n int, away time.Duration) error {
	a := w.agents[n]
	w.countAgent(ctx, a)
	a.Kill()
	if err := cluster.Wait(ctx, away); err != nil {
		return err
	}
	next, err := w.StartAgent(ctx, a.AgentOptions)
	if err != nil {
		return err
	}
	w.agents[n] = next
	w.tally.agentRestarts++
	return nil
}

// restartEngine kills a random engine and starts another one with its worker id.
func (w *world) restartEngine(ctx context.Context) error {
	i := w.rng.IntN(engines)
	e := w.engines[i].Load()
	w.countEngine(ctx, e)
	e.Kill()
	w.tally.engineRestarts++
	return w.startEngine(ctx, i)
}

// restartRouter kills the router. The next one joins while events flow.
func (w *world) restartRouter(ctx context.Context) error {
	w.router.Kill()
	var err error
	w.router, err = w.StartRouter(ctx)
	w.tally.routerRestarts++
	return err
}

// stopRouter pauses the router for a while.
func (w *world) stopRouter(ctx context.Context) error {
	w.router.Pause()
	err := cluster.Wait(ctx, w.upTo(maxRouterStopped))
	w.router.Continue()
	w.tally.routerStops++
	return err
}

// resetEngine resets the prefix cache of an engine. A busy engine refuses.
func (w *world) resetEngine(ctx context.Context) error {
	return w.endpoint(w.rng.IntN(engines)).Post(ctx, "/v1/reset_prefix_cache", struct{}{}, nil)
}

// upTo returns a random time below d.
func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d))) }

// calmRestart kills agent n while nothing changes and starts the next one at once. As soon as the
// router follows the new agent, it records the share of the engines' device blocks that the
// router knows. before is the state before the kill.
func (w *world) calmRestart(ctx context.Context, n int, before *cluster.Picture) error {
	old := make(map[uint64]string)
	for i := n; i < engines; i += nodes {
		st, _ := before.Stream(uint64(i)+1, 0)
		old[uint64(i)+1] = st.PublisherID
	}
	if err := w.replaceAgent(ctx, n, 0); err != nil {
		return err
	}
	p, err := w.returned(ctx, old)
	if err != nil {
		return err
	}
	w.tally.calm++
	held := make(map[cluster.Residency]bool)
	for _, s := range p.Engines {
		if _, ours := old[s.WorkerID]; !ours {
			continue
		}
		if s.Stats.FramesSent+s.Stats.FramesDropped > bufferSteps {
			w.tally.beyond++
		}
		maps.Copy(held, cluster.Held([]engine.State{s}, nil))
	}
	share, err := w.known(ctx, held)
	if err != nil {
		return err
	}
	w.tally.kept = min(w.tally.kept, share)
	if share < minKept {
		w.tally.note("round %d: after a restart of agent %d the router knew %.1f %% of %d blocks on its engines' devices",
			w.tally.rounds, n+1, 100*share, len(held))
	}
	return nil
}

// known returns the share, 0 to 1, of the held residencies that the router knows: the largest
// within the time atOnce.
func (w *world) known(ctx context.Context, held map[cluster.Residency]bool) (share float64, err error) {
	if len(held) == 0 {
		return 1, nil
	}
	for deadline := time.Now().Add(atOnce); ; {
		believed, err := w.router.Believed(ctx)
		if err != nil {
			return 0, err
		}
		d := cluster.Compare(held, believed)
		share = max(share, 1-float64(d.Lost)/float64(len(held)))
		if share >= minKept || time.Now().After(deadline) {
			return share, nil
		}
		if err := cluster.Wait(ctx, lookEvery); err != nil {
			return 0, err
		}
	}
}

// returned waits until each worker in old has a new publisher, and the router has all its events.
// old has the publisher before the restart, by worker. It returns the state then.
func (w *world) returned(ctx context.Context, old map[uint64]string) (p *cluster.Picture, err error) {
	reason := ""
	err = cluster.Until(ctx, returnTime, lookEvery, func() (bool, error) {
		if p, err = w.parts().Look(ctx, false); err != nil {
			return false, err
		}
		reason = missing(p, old)
		return reason == "", nil
	})
	if errors.Is(err, cluster.ErrTooLong) {
		err = fmt.Errorf("after a restart of its agent, %s: %w", reason, err)
	}
	return p, err
}

// missing returns which worker of old has no new publisher, or one whose events the router still
// lacks; empty when all is well.
func missing(p *cluster.Picture, old map[uint64]string) string {
	for worker, publisher := range old {
		st, ok := p.Stream(worker, 0)
		if !ok || st.PublisherID == publisher {
			return fmt.Sprintf("engine %d has no new publisher", worker)
		}
		if !p.Feed(st.PublisherID).CaughtUp(st) {
			return fmt.Sprintf("the router has not caught up with %s", st.Owner)
		}
	}
	return ""
}
