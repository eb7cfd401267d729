package soak

import (
	"context"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// calmRestart kills an agent while nothing moves, starts the next one at once, and
// compares the router's picture of its engines' devices with the truth as soon as
// the router follows the new agent.
func (w *world) calmRestart(ctx context.Context, n int, before *view) error {
	old := make(map[uint64]string)
	for i := n; i < engines; i += nodes {
		st, _ := before.stream(uint64(i) + 1)
		old[uint64(i)+1] = st.PublisherID
	}
	if err := w.replaceAgent(ctx, n, 0); err != nil {
		return err
	}
	v, err := w.returned(ctx, old)
	if err != nil {
		return err
	}
	w.tally.calm++
	held := make(map[residency]bool)
	for _, s := range v.states {
		if _, ours := old[s.WorkerID]; !ours {
			continue
		}
		if s.Stats.FramesSent+s.Stats.FramesDropped > bufferSteps {
			w.tally.beyond++
		}
		for r := range truth([]cluster.EngineState{s}, nil) {
			held[r] = true
		}
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

// known is the share of held that the router believes in, the best within atOnce.
func (w *world) known(ctx context.Context, held map[residency]bool) (share float64, err error) {
	if len(held) == 0 {
		return 1, nil
	}
	for deadline := time.Now().Add(atOnce); ; {
		var dump cluster.RouterDump
		if err := w.router.Control.Get(ctx, "/v1/dump", &dump); err != nil {
			return 0, err
		}
		d := compare(held, belief(dump))
		share = max(share, 1-float64(d.lost)/float64(len(held)))
		if share >= minKept || time.Now().After(deadline) {
			return share, nil
		}
		if err := pause(ctx, lookEvery); err != nil {
			return 0, err
		}
	}
}

// returned waits until the router has caught up with new publishers of all
// workers of old, which are given with the publishers that they had.
func (w *world) returned(ctx context.Context, old map[uint64]string) (*view, error) {
	deadline := time.Now().Add(returnTime)
	reason := ""
	for time.Now().Before(deadline) {
		v, err := w.look(ctx, false)
		if err != nil {
			return nil, err
		}
		if reason = v.missing(old); reason == "" {
			return v, nil
		}
		if err := pause(ctx, lookEvery); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("after a restart of its agent, %s, for %s", reason, returnTime)
}

// missing says whose new publisher the router has not caught up with.
func (v *view) missing(old map[uint64]string) string {
	for worker, publisher := range old {
		st, ok := v.stream(worker)
		if !ok || st.PublisherID == publisher {
			return fmt.Sprintf("engine %d has no new publisher", worker)
		}
		if f := v.feed(st.PublisherID); f.PublisherID == "" || f.Cursor != st.LastEventID || f.Announced != st.LastEventID {
			return fmt.Sprintf("the router has not caught up with %s", st.Owner)
		}
	}
	return ""
}
