package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	enginesim "github.com/blockyard-ai/blockyard/lab/engine"
	"github.com/blockyard-ai/blockyard/lab/workload"
)

const (
	// windowBlocks is the sliding window of a hybrid model in blocks.
	windowBlocks = 6
	// maxCredits bounds the prompts whose credit is compared at a time, maxPromises those that
	// are sent to an engine afterwards.
	maxCredits, maxPromises = 200, 12
	// maxDivergence bounds the lines that say what differs.
	maxDivergence = 5
	// rejoinTime bounds the wait for the engines' sessions after a kill.
	rejoinTime = 20 * time.Second
)

// checkHybrid compares the router's credit with what the engines of a hybrid model and their agents
// find: of the cluster at rest, after the death of an agent, and after that of an engine. Then it
// sends prompts to the new engine, which has to serve what the router credits. It fills the report.
func (c *demoCluster) checkHybrid(ctx context.Context, o *Options, requests []workload.Request, r *RunReport) error {
	calls := &caller{o.limits}
	if err := c.compareCredit(ctx, calls, requests, r); err != nil {
		return err
	}
	victim := c.engines[len(c.engines)-1]
	for _, kill := range []func() error{
		func() error { return c.replaceAgent(ctx, (len(c.engines)-1)%len(c.agents)) },
		func() error { return c.replaceEngine(ctx, victim) },
	} {
		if err := kill(); err != nil {
			return err
		}
		r.Kills++
		s, err := c.settle(ctx, o.limits)
		if err != nil {
			return fmt.Errorf("after kill %d: %w", r.Kills, err)
		}
		r.addPicture(s)
		if err := c.compareCredit(ctx, calls, requests, r); err != nil {
			return err
		}
	}
	return c.keepPromises(ctx, o, victim, requests, r)
}

// replaceAgent kills an agent and starts another in its place, which takes over its tiers. It waits until
// all engines have sessions.
func (c *demoCluster) replaceAgent(ctx context.Context, i int) error {
	c.agents[i].Kill()
	a, err := c.StartAgent(ctx, c.agents[i].AgentOptions)
	if err != nil {
		return err
	}
	c.agents[i] = a
	return c.awaitSessions(ctx)
}

// replaceEngine kills an engine and starts it again with an empty device.
func (c *demoCluster) replaceEngine(ctx context.Context, e *engine) error {
	e.Kill()
	options := e.EngineOptions
	options.DropFrames = 0
	again, err := c.StartEngine(ctx, options)
	if err != nil {
		return err
	}
	e.Engine = again
	return c.awaitSessions(ctx)
}

// awaitSessions waits until the agents have a session with each engine.
func (c *demoCluster) awaitSessions(ctx context.Context) error {
	return cluster.Until(ctx, rejoinTime, 20*time.Millisecond, func() (bool, error) {
		sessions := 0
		for _, a := range c.agents {
			var stats cluster.AgentStats
			if err := a.Get(ctx, "/v1/stats", &stats); err != nil {
				return false, err
			}
			sessions += stats.Sessions
		}
		return sessions == len(c.engines), nil
	})
}

// compareCredit compares, for prompts of the workload and for their beginnings, the blocks that the
// router credits each engine with and those that the engine and its agent find. The cluster is at rest.
func (c *demoCluster) compareCredit(ctx context.Context, calls *caller, requests []workload.Request, r *RunReport) error {
	for i := range requests[:min(len(requests), maxCredits)] {
		whole := requests[i].Prompt(nil)
		for _, tokens := range [][]uint32{whole, whole[:1+len(whole)*2/3], whole[:1+len(whole)/3]} {
			credit, err := calls.credit(ctx, c.router.Endpoint, tokens)
			if err != nil {
				return err
			}
			for _, e := range c.engines {
				found, full, err := calls.cached(ctx, e.Endpoint, tokens)
				if err != nil {
					return err
				}
				r.CreditCompared++
				r.CreditBlocks += found.blocks()
				r.CreditStored += found.stored
				r.CreditWithoutWindow += max(full, found.blocks())
				if got := credit[e.Worker]; got != found {
					r.divergeCredit("request %s, %d tokens: the router credits worker %d with %d blocks and %d of its agent, found are %d and %d",
						requests[i].ID, len(tokens), e.Worker, got.device, got.stored, found.device, found.stored)
				}
			}
		}
	}
	return nil
}

// divergeCredit counts a difference and keeps the first descriptions.
func (r *RunReport) divergeCredit(format string, args ...any) {
	r.CreditDiverged++
	if r.CreditDiverged <= maxDivergence {
		r.divergence = append(r.divergence, fmt.Sprintf(format, args...))
	}
}

// cached returns the prefix of a prompt that an engine finds on its device and at its agent, and how many
// blocks full attention alone has on the device.
func (c *caller) cached(ctx context.Context, at cluster.Endpoint, tokens []uint32) (found prefix, full int, err error) {
	var answer enginesim.CachedAnswer
	body := append(appendTokens([]byte(`{"tokens":`), tokens), '}')
	if err := c.post(ctx, at, "/v1/cached", body, "", &answer); err != nil {
		return prefix{}, 0, err
	}
	return prefix{answer.Blocks, max(answer.Stored-answer.Blocks, 0)}, answer.FullBlocks, nil
}

// keepPromises sends an engine prompts of which its agent has more blocks than its device. Each must
// be served from where the router credits it, block by block, and every loaded byte must be right. The
// cluster comes to rest before each of them.
func (c *demoCluster) keepPromises(ctx context.Context, o *Options, e *engine, requests []workload.Request, r *RunReport) error {
	calls := &caller{o.limits}
	for i := range requests {
		if r.Promises == maxPromises {
			break
		}
		tokens := requests[i].Prompt(nil)
		credit, err := calls.credit(ctx, c.router.Endpoint, tokens)
		if err != nil {
			return err
		}
		want := credit[e.Worker]
		if want.stored == 0 {
			continue
		}
		var served Served
		if _, err := calls.generate(ctx, e.Endpoint, "promise-"+requests[i].ID, tokens, 1, func(s Served) { served = s }); err != nil {
			return err
		}
		r.Promises++
		r.PromisedBlocks += want.blocks()
		size := uint64(o.BlockSize)
		if got := (prefix{int(served.Device / size), int((served.Host + served.Disk) / size)}); got != want {
			r.divergeCredit("request %s: the router credits worker %d with %d blocks and %d of its agent, served were %d and %d",
				requests[i].ID, e.Worker, want.device, want.stored, got.device, got.stored)
		}
		s, err := c.settle(ctx, o.limits)
		if err != nil {
			return err
		}
		r.addPicture(s)
	}
	return nil
}

// addPicture adds the checks of a later picture of the cluster to the report of its run.
func (r *RunReport) addPicture(s settled) {
	r.WrongBytes = max(r.WrongBytes, s.wrongBytes()) // a new engine counts from 0
	r.Compared += s.Diff.Compared
	r.Diverged += s.Diff.Diverged()
	r.divergence = append(r.divergence, s.Diff.First...)
	r.divergence = r.divergence[:min(len(r.divergence), 2*maxDivergence)]
	r.Unsound = append(r.Unsound, s.Inexact...)
	if s.Moving != "" {
		r.Settled, r.unsettled = false, s.Moving
	}
}
