package soak

import (
	"context"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// healthExact is what streams and feeds say that have missed nothing.
const healthExact = "exact"

// view is what all processes say at one time.
type view struct {
	states []cluster.EngineState
	agents []cluster.AgentStats
	feeds  []cluster.RouterFeed
	// moving says what is not at rest, inexact what is not vouched for; both empty
	// when all is well.
	moving, inexact string
	diff            difference
}

// settle waits until nothing moves and the router believes what is true, as long
// as limit allows, and returns what it saw last. Processes that cannot be asked
// right now are waited for too.
func (w *world) settle(ctx context.Context, limit time.Duration) (*view, error) {
	deadline := time.Now().Add(limit)
	for {
		last := time.Now().After(deadline)
		v, err := w.look(ctx, last)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err == nil && v.moving == "" && v.inexact == "" && v.diff.diverged() == 0:
			return v, nil
		case last && err != nil:
			return nil, fmt.Errorf("within %s: %w", limit, err)
		case last:
			return v, w.alive()
		}
		if err := pause(ctx, lookEvery); err != nil {
			return nil, err
		}
	}
}

// look asks everybody. Blocks are compared when nothing moves, or in any case if
// this is the last look.
func (w *world) look(ctx context.Context, last bool) (*view, error) {
	v := new(view)
	for _, a := range w.agents {
		var s cluster.AgentStats
		if err := a.Get(ctx, "/v1/stats", &s); err != nil {
			return nil, err
		}
		v.agents = append(v.agents, s)
	}
	for i := range w.engines {
		var s cluster.EngineState
		if err := w.endpoint(i).Get(ctx, "/v1/state", &s); err != nil {
			return nil, err
		}
		v.states = append(v.states, s)
	}
	if err := w.router.Get(ctx, "/v1/feeds", &v.feeds); err != nil {
		return nil, err
	}
	v.moving, v.inexact = v.movement(), v.doubts()
	if v.moving != "" && !last {
		return v, nil
	}
	return v, w.compare(ctx, v)
}

// compare completes a view with what the router believes and what is true.
func (w *world) compare(ctx context.Context, v *view) error {
	var pools []cluster.AgentPool
	for _, a := range w.agents {
		var p []cluster.AgentPool
		if err := a.Control.Get(ctx, "/v1/pools", &p); err != nil {
			return err
		}
		pools = append(pools, p...)
	}
	var dump cluster.RouterDump
	if err := w.router.Control.Get(ctx, "/v1/dump", &dump); err != nil {
		return err
	}
	v.diff = compare(truth(v.states, pools), belief(dump))
	return nil
}

// movement says what has not come to rest, or nothing.
func (v *view) movement() string {
	for _, s := range v.states {
		if !s.Idle {
			return fmt.Sprintf("engine %d is busy", s.WorkerID)
		}
	}
	streams := 0
	for i := range v.agents {
		if !v.agents[i].Quiet {
			return fmt.Sprintf("agent %d is busy", i+1)
		}
		for _, st := range v.agents[i].Streams {
			streams++
			if f := v.feed(st.PublisherID); f.Cursor != st.LastEventID || f.Announced != st.LastEventID {
				return fmt.Sprintf("the router is at event %d of %s and heard of %d, its publisher is at %d",
					f.Cursor, st.Owner, f.Announced, st.LastEventID)
			}
		}
	}
	if len(v.feeds) != streams {
		return fmt.Sprintf("the router follows %d feeds, agents have %d streams", len(v.feeds), streams)
	}
	return ""
}

// doubts says whose knowledge is not exact, or nothing.
func (v *view) doubts() string {
	for _, s := range v.states {
		st, ok := v.stream(s.WorkerID)
		switch {
		case !ok:
			return fmt.Sprintf("no agent has a stream of engine %d", s.WorkerID)
		case st.Health != healthExact:
			return fmt.Sprintf("the stream of %s is %s", st.Owner, st.Health)
		}
	}
	for _, f := range v.feeds {
		if f.Health != healthExact || !f.DigestOK {
			return fmt.Sprintf("the router's feed of %s is %s, digest as announced: %t", f.Owner, f.Health, f.DigestOK)
		}
	}
	return ""
}

func (v *view) feed(publisher string) cluster.RouterFeed {
	for _, f := range v.feeds {
		if f.PublisherID == publisher {
			return f
		}
	}
	return cluster.RouterFeed{}
}

// stream is the stream of an engine, at whatever agent.
func (v *view) stream(worker uint64) (cluster.AgentStream, bool) {
	owner := kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(worker)}).String()
	for i := range v.agents {
		for _, st := range v.agents[i].Streams {
			if st.Owner == owner {
				return st, true
			}
		}
	}
	return cluster.AgentStream{}, false
}
