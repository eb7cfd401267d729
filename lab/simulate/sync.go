package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/lab/simulate/policy"
	"github.com/blockyard-ai/blockyard/router/replica"
)

// sharedModel is the model of all bookings.
var sharedModel = replica.Model{Name: "model", BlockSize: 64}

// errAsked says that a router asked for bookings again although no message was lost.
var errAsked = errors.New("a router asked for bookings that no message lost")

// exchange sends the changes of each router's bookings to the others.
func (c *cluster) exchange() bool {
	for _, from := range c.routers {
		if len(from.replica.Tick(c.clock.Wall())) > 0 {
			c.fail(errAsked)
		}
		out := from.replica.Outgoing(nil, c.clock.Wall())
		if len(out) == 0 {
			continue
		}
		c.clock.After(SyncLag/2, func() {
			for _, to := range c.routers {
				for _, o := range out {
					to.replica.Receive(o.Data, c.clock.Wall())
				}
			}
		})
	}
	return !c.over()
}

// Fleet has the times to the first token of several routers over those of one router.
type Fleet struct {
	Routers int
	// Mean and P99 are for routers that share their bookings, StaleMean and StaleP99 for routers that
	// do not.
	Mean, P99, StaleMean, StaleP99 float64
}

// CompareFleet simulates one router, n routers that share their bookings and n that do not, with a
// policy and the load of the scenario "synced", and returns the ratios.
func CompareFleet(ctx context.Context, policyName string, n, seeds int) (Fleet, error) {
	p, ok := policy.Named(policyName)
	if !ok {
		return Fleet{}, fmt.Errorf("simulate policy: %q is none", policyName)
	}
	all := Scenarios()
	synced := all[slices.IndexFunc(all, func(s Scenario) bool { return s.Name == "synced" })]
	synced.Routers = n
	one, stale := synced, synced
	one.Routers, one.Synced, stale.Synced = 1, false, false
	var means [3]Result
	for i, s := range []*Scenario{&one, &synced, &stale} {
		t, err := runScenario(ctx, s, []policy.Policy{p}, seeds)
		if err != nil {
			return Fleet{}, err
		}
		means[i] = t.Rows[0].Mean
	}
	return Fleet{Routers: n,
		Mean: means[1].TTFTMean / means[0].TTFTMean, P99: means[1].TTFTP99 / means[0].TTFTP99,
		StaleMean: means[2].TTFTMean / means[0].TTFTMean, StaleP99: means[2].TTFTP99 / means[0].TTFTP99}, nil
}
