package killloop

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// tierGauges are the slots of a tier, as GET /v1/stats shows them.
type tierGauges struct {
	Capacity, Free, Granted, Staging, Receiving, Quarantined, Active, Inactive int
}

func (t *tierGauges) sum() int {
	return t.Free + t.Granted + t.Staging + t.Receiving + t.Quarantined + t.Active + t.Inactive
}

// agentStats is what the harness needs of GET /v1/stats.
type agentStats struct {
	Quiet    bool
	Sessions int
	Engines  struct {
		AwaitingExit int `json:"awaiting_exit"`
		Former       int
	}
	Pools []poolStats
}

// poolStats are those of one pool.
type poolStats struct {
	Namespace     string
	Host, Disk    tierGauges
	Pins          int
	HostEvictions uint64 `json:"host_evictions"`
	DiskEvictions uint64 `json:"disk_evictions"`
}

// statsTimeout bounds one question.
const statsTimeout = 10 * time.Second

// readStats asks an agent at its admin address.
func readStats(ctx context.Context, admin string) (agentStats, error) {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	var s agentStats
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/v1/stats", http.NoBody)
	if err != nil {
		return s, fmt.Errorf("agent's stats: %w", err)
	}
	// Each agent is asked a few times: no connection needs to be kept.
	req.Close = true
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, fmt.Errorf("agent's stats: %w", err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return s, fmt.Errorf("agent's stats: %s", r.Status)
	}
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
		return s, fmt.Errorf("agent's stats: %w", err)
	}
	return s, nil
}

// settled reports whether nothing is going on any more.
func (s *agentStats) settled() bool {
	return s.Quiet && s.Sessions == 0 && s.Engines.AwaitingExit == 0 && s.Engines.Former == 0
}

// leaks are what is held although nobody is left, and tiers whose states do not
// add up.
func (s *agentStats) leaks() (found []string) {
	if !s.settled() {
		found = append(found, fmt.Sprintf("quiet %t, %d sessions, %d that await an exit, %d former ones",
			s.Quiet, s.Sessions, s.Engines.AwaitingExit, s.Engines.Former))
	}
	for _, p := range s.Pools {
		if p.Pins != 0 {
			found = append(found, fmt.Sprintf("pool %s: %d pins", p.Namespace, p.Pins))
		}
		for _, t := range []struct {
			name string
			tierGauges
		}{{"host", p.Host}, {"disk", p.Disk}} {
			if t.Granted+t.Staging+t.Receiving+t.Quarantined+t.Active != 0 || t.sum() != t.Capacity {
				found = append(found, fmt.Sprintf("pool %s: %s tier %+v", p.Namespace, t.name, t.tierGauges))
			}
		}
		if p.HostEvictions+p.DiskEvictions != 0 {
			found = append(found, fmt.Sprintf("pool %s: %d evictions, where there is room for all", p.Namespace, p.HostEvictions+p.DiskEvictions))
		}
	}
	return found
}
