package killloop

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Report is what a run has seen.
type Report struct {
	Seed uint64
	// Kills of the agent, EngineKills of engines, Wipes of the host tier with all
	// processes.
	Kills, EngineKills, Wipes int
	// Sealed is the number of sealed blocks in the files, summed over the kills.
	Sealed int
	// MidCopy is the number of copies into slots that a kill of the agent met, over
	// all kills. ResumedGrants and ResumedPins are the slots that RESUMED kept,
	// NotKept the grants that it did not.
	MidCopy                             int
	ResumedGrants, ResumedPins, NotKept uint64
	// Stored is the number of grants, Loaded that of blocks that engines loaded and
	// compared, Found that of sealed blocks that the checker found and compared.
	Stored, Loaded, Found uint64
	// Torn is the number of damaged records, Garbled that of lines of children that
	// could not be read.
	Torn    int
	Garbled uint64
	// Ready are the times from the start of each agent to its ready line.
	Ready []time.Duration
	Wall  time.Duration

	faults map[fault]uint64
	texts  []string
}

// take takes over what the ledger says.
func (r *Report) take(l *ledger) {
	r.MidCopy = l.inFlight()
	l.mu.Lock()
	defer l.mu.Unlock()
	r.ResumedGrants, r.ResumedPins, r.NotKept = l.resumedGrants, l.resumedPins, l.notKept
	r.Loaded, r.Found = l.loaded, l.found
	r.Stored = uint64(len(l.holds))
	r.faults, r.texts = l.counts, l.texts
}

// verdict is what is wrong with the run: faults, or that it proves nothing.
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

// Lines are the figures for people; the last line is for scripts.
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
	for _, f := range faults()[2:] {
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
