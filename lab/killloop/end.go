package killloop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// end ends the run: it waits until all engines are connected and a checker has looked up all
// sealed blocks. Then it ends the engines, one of them by a kill, and checks that the agent holds
// nothing for them. Last it stops the agent.
func (l *loop) end(ctx context.Context) error {
	err := l.until(ctx, func() (bool, error) {
		stats, err := l.stats(ctx)
		return stats.Sessions == len(l.engines), err
	})
	if err != nil {
		return fmt.Errorf("the engines come back to the last agent: %w", err)
	}
	if err := l.startChecker(true); err != nil {
		return err
	}
	if err := l.wait(ctx, l.checker, sweepTime, "looking for all sealed blocks"); err != nil {
		return err
	}
	if err := l.checkerResult(); err != nil {
		return err
	}
	if left, unknown := l.ledger.wanted(0, anyOrder); len(left) > 0 || unknown > 0 {
		return fmt.Errorf("sealed blocks of %d documents were not looked for, and %d blocks are of no document that slots were granted for", len(left), unknown)
	}
	if err := l.stopEngines(ctx); err != nil {
		return err
	}
	if err := l.checkLeaks(ctx); err != nil {
		return err
	}
	l.agent.Signal(syscall.SIGTERM)
	return l.wait(ctx, l.agent.Process, stopTime, "the agent's end")
}

// stopEngines ends all engines: it kills the first and asks the others to end, and waits for them.
func (l *loop) stopEngines(ctx context.Context) error {
	l.kill(l.engines[0])
	l.awaitKilled()
	for _, e := range l.engines[1:] {
		if err := e.Stdin.Close(); err != nil {
			return fmt.Errorf("stop %s: %w", e.Name, err)
		}
	}
	for _, e := range l.engines[1:] {
		if err := l.wait(ctx, e.Process, stopTime, e.Name+"'s end"); err != nil {
			return err
		}
		ended, err := e.Result()
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
		l.ledger.engineEnded(e.Name, ended)
	}
	return nil
}

// checkLeaks waits until the agent, whose engines have ended, holds nothing for them. What it still
// holds after the time for that counts as faults.
func (l *loop) checkLeaks(ctx context.Context) error {
	var held []string
	err := l.until(ctx, func() (bool, error) {
		stats, err := l.stats(ctx)
		held = leaks(&stats)
		return len(held) == 0, err
	})
	if !errors.Is(err, cluster.ErrTooLong) { // nil: nothing is held
		return err
	}
	for _, leak := range held {
		l.ledger.fault(faultLeak, 1, "%s", leak)
	}
	return nil
}

// until waits for a condition, settleTime at most.
func (l *loop) until(ctx context.Context, holds func() (bool, error)) error {
	return cluster.Until(ctx, settleTime, 5*time.Millisecond, holds)
}

// stats asks the agent.
func (l *loop) stats(ctx context.Context) (s cluster.AgentStats, err error) {
	return s, l.agent.Get(ctx, "/v1/stats", &s)
}

// settled reports whether the agent has no session and no work.
func settled(s *cluster.AgentStats) bool {
	return s.Quiet && s.Sessions == 0 && s.Engines.AwaitingExit == 0 && s.Engines.Previous == 0
}

// leaks returns a line for each thing that an agent without engines still holds: sessions, pins,
// slots in use. It also names tiers whose slot states do not add up, and evictions, for which the
// tiers are too large.
func leaks(s *cluster.AgentStats) (found []string) {
	if !settled(s) {
		found = append(found, fmt.Sprintf("quiet %t, %d sessions, %d that await an exit, %d previous ones",
			s.Quiet, s.Sessions, s.Engines.AwaitingExit, s.Engines.Previous))
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

// Report has the figures of a run.
type Report struct {
	Seed uint64
	// Kills of the agent, kills of engines, and losses of the host tier with all
	// processes.
	Kills, EngineKills, Wipes int
	// Sealed is the number of sealed blocks in the files, summed over the kills.
	Sealed int
	// MidCopy is the number of copies into slots that kills interrupted. ResumedGrants
	// and ResumedPins are the slots that RESUMED kept, NotKept the grants that it did
	// not keep.
	MidCopy                             int
	ResumedGrants, ResumedPins, NotKept uint64
	// Stored is the number of grants, Loaded the number of blocks that engines loaded
	// and compared, Found the number of sealed blocks that the checker found and
	// compared.
	Stored, Loaded, Found uint64
	// Torn is the number of damaged records, Garbled the number of unreadable lines of
	// children.
	Torn    int
	Garbled uint64
	// Ready are the times from the start of each agent to its ready line.
	Ready []time.Duration
	Wall  time.Duration

	faults map[fault]uint64
	texts  []string
}

// take copies the figures of the ledger into the report.
func (r *Report) take(l *ledger) {
	r.MidCopy = l.inFlight()
	l.mu.Lock()
	defer l.mu.Unlock()
	r.ResumedGrants, r.ResumedPins, r.NotKept = l.resumedGrants, l.resumedPins, l.notKept
	r.Loaded, r.Found = l.loaded, l.found
	r.Stored = uint64(len(l.holds))
	r.faults, r.texts = l.counts, l.texts
}

// verdict returns an error for a run with faults, and for a run that proves nothing because kills
// hit no copy or no sealed block.
func (r *Report) verdict() error {
	var wrong []string
	for _, f := range faults() {
		if n := r.faults[f]; n > 0 {
			wrong = append(wrong, fmt.Sprintf("%s=%d", f, n))
		}
	}
	if r.Garbled > 0 {
		wrong = append(wrong, fmt.Sprintf("%d lines of children are no notes", r.Garbled))
	}
	if len(wrong) > 0 {
		return fmt.Errorf("kill-loop: failed: %s", strings.Join(wrong, ", "))
	}
	for _, c := range []struct {
		what  string
		count uint64
	}{
		{"a sealed block at a kill", uint64(r.Sealed)},
		{"a copy in flight at a kill", uint64(r.MidCopy)},
		{"a resumed grant", r.ResumedGrants},
		{"a sealed block that was looked for", r.Found},
		{"a loaded block", r.Loaded},
	} {
		if c.count == 0 {
			return fmt.Errorf("kill-loop: the run proves nothing: it did not see %s", c.what)
		}
	}
	return nil
}

// Lines returns the figures of the run and the texts of its faults for people; the last line is for
// scripts.
func (r *Report) Lines() string {
	var b strings.Builder
	for _, text := range r.texts {
		fmt.Fprintf(&b, "  %s\n", text)
	}
	kills := max(r.Kills, 1)
	fmt.Fprintf(&b, "sealed blocks seen at kills   %d (%d a kill), found again and compared %d times\n", r.Sealed, r.Sealed/kills, r.Found)
	fmt.Fprintf(&b, "copies in flight at kills     %d (%.1f a kill)\n", r.MidCopy, float64(r.MidCopy)/float64(kills))
	fmt.Fprintf(&b, "resumed                       %d grants, %d pins; %d grants were settled already\n", r.ResumedGrants, r.ResumedPins, r.NotKept)
	fmt.Fprintf(&b, "engines                       %d slots granted, %d blocks loaded and compared\n", r.Stored, r.Loaded)
	fmt.Fprintf(&b, "host tier lost                %d times; records torn by a kill %d\n", r.Wipes, r.Torn)
	for _, f := range faults()[2:] { // the last line has the first two
		fmt.Fprintf(&b, "%-29s %d\n", strings.ReplaceAll(string(f), "_", " "), r.faults[f])
	}
	if n := len(r.Ready); n > 0 {
		ready := slices.Sorted(slices.Values(r.Ready))
		fmt.Fprintf(&b, "restart to ready              median %s, max %s\n", ready[n/2].Round(time.Millisecond), ready[n-1].Round(time.Millisecond))
	}
	fmt.Fprintf(&b, "seed %d, wall time %s\n", r.Seed, r.Wall.Round(100*time.Millisecond))
	fmt.Fprintf(&b, "kill-loop: kills=%d engine_kills=%d sealed_lost=%d wrong_bytes=%d\n",
		r.Kills, r.EngineKills, r.faults[faultSealed], r.faults[faultWrong])
	return b.String()
}
