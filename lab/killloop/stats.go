package killloop

import (
	"context"
	"fmt"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// stats asks the agent.
func (l *loop) stats(ctx context.Context) (s cluster.AgentStats, err error) {
	return s, l.agent.Get(ctx, "/v1/stats", &s)
}

// settled reports whether nothing is going on any more.
func settled(s *cluster.AgentStats) bool {
	return s.Quiet && s.Sessions == 0 && s.Engines.AwaitingExit == 0 && s.Engines.Former == 0
}

// leaks are what is held although nobody is left, and tiers whose states do not
// add up.
func leaks(s *cluster.AgentStats) (found []string) {
	if !settled(s) {
		found = append(found, fmt.Sprintf("quiet %t, %d sessions, %d that await an exit, %d former ones",
			s.Quiet, s.Sessions, s.Engines.AwaitingExit, s.Engines.Former))
	}
	for _, p := range s.Pools {
		if p.Pins != 0 {
			found = append(found, fmt.Sprintf("pool %s: %d pins", p.Namespace, p.Pins))
		}
		for _, t := range []struct {
			name string
			cluster.TierGauges
		}{{"host", p.Host}, {"disk", p.Disk}} {
			if t.Granted+t.Staging+t.Receiving+t.Quarantined+t.Active != 0 || t.Free+t.Inactive != t.Capacity {
				found = append(found, fmt.Sprintf("pool %s: %s tier %+v", p.Namespace, t.name, t.TierGauges))
			}
		}
		if p.HostEvictions+p.DiskEvictions != 0 {
			found = append(found, fmt.Sprintf("pool %s: %d evictions, where there is room for all", p.Namespace, p.HostEvictions+p.DiskEvictions))
		}
	}
	return found
}
