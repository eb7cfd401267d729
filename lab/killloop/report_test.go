package killloop

import (
	"strings"
	"testing"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

func goodReport() Report {
	return Report{Kills: 50, EngineKills: 12, Sealed: 1, MidCopy: 1, ResumedGrants: 1, Loaded: 1, Found: 1}
}

func TestRunThatProvesNothingFails(t *testing.T) {
	good := goodReport()
	if err := good.verdict(); err != nil {
		t.Errorf("a good run: %v", err)
	}
	for what, spoil := range map[string]func(r *Report){
		"sealed block at a kill": func(r *Report) { r.Sealed = 0 },
		"copy in flight":         func(r *Report) { r.MidCopy = 0 },
		"resumed grant":          func(r *Report) { r.ResumedGrants = 0 },
		"looked for":             func(r *Report) { r.Found = 0 },
		"loaded block":           func(r *Report) { r.Loaded = 0 },
	} {
		r := goodReport()
		spoil(&r)
		if err := r.verdict(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("without a %s: error %v", what, err)
		}
	}
}

func TestEveryFaultFailsTheRunAndIsNamed(t *testing.T) {
	for _, f := range faults() {
		r := goodReport()
		r.faults = map[fault]uint64{f: 3}
		if err := r.verdict(); err == nil || !strings.Contains(err.Error(), string(f)+"=3") {
			t.Errorf("%s: error %v", f, err)
		}
	}
}

func TestLastLineIsForScripts(t *testing.T) {
	r := goodReport()
	r.faults = map[fault]uint64{faultSealed: 1, faultWrong: 2}
	lines := strings.Split(strings.TrimSuffix(r.Lines(), "\n"), "\n")
	if got, want := lines[len(lines)-1], "kill-loop: kills=50 engine_kills=12 sealed_lost=1 wrong_bytes=2"; got != want {
		t.Errorf("last line %q, want %q", got, want)
	}
}

func TestWhatIsHeldWhenNobodyIsLeftIsALeak(t *testing.T) {
	clean := func() cluster.AgentStats {
		var s cluster.AgentStats
		s.Quiet = true
		s.Pools = []cluster.PoolStats{{Host: cluster.TierGauges{Capacity: 5, Free: 2, Inactive: 3}, Disk: cluster.TierGauges{Capacity: 1, Free: 1}}}
		return s
	}
	if s := clean(); len(leaks(&s)) != 0 {
		t.Errorf("leaks %q where there are none", leaks(&s))
	}
	for name, spoil := range map[string]func(s *cluster.AgentStats){
		"busy":            func(s *cluster.AgentStats) { s.Quiet = false },
		"session":         func(s *cluster.AgentStats) { s.Sessions = 1 },
		"awaiting exit":   func(s *cluster.AgentStats) { s.Engines.AwaitingExit = 1 },
		"former":          func(s *cluster.AgentStats) { s.Engines.Previous = 1 },
		"pin":             func(s *cluster.AgentStats) { s.Pools[0].Pins = 1 },
		"granted":         func(s *cluster.AgentStats) { s.Pools[0].Host.Granted, s.Pools[0].Host.Free = 1, 1 },
		"quarantined":     func(s *cluster.AgentStats) { s.Pools[0].Disk.Quarantined, s.Pools[0].Disk.Free = 1, 0 },
		"does not add up": func(s *cluster.AgentStats) { s.Pools[0].Host.Free-- },
		"evicted":         func(s *cluster.AgentStats) { s.Pools[0].HostEvictions = 1 },
	} {
		s := clean()
		spoil(&s)
		if len(leaks(&s)) == 0 {
			t.Errorf("%s: no leak was found", name)
		}
	}
}
