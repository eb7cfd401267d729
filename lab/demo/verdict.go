package demo

import "fmt"

// minFramesDropped is the least number of dropped frames that shows repair.
const minFramesDropped = 3

// expectation is the result that one run must have.
type expectation struct {
	// name is the name of the run.
	name string
	// offload: host and disk tiers are on. everyTier: each of them must have served
	// tokens. traced: the requests are a trace, and an unused tier is only a note.
	offload, everyTier, traced bool
	// hybrid: the router's credit must be what the engines find.
	hybrid bool
	// inTurn: the router gives requests to the engines in turn.
	inTurn bool
	// engines is the number of engines, blockSize the tokens of a block, dropped the
	// number of frames to leave out.
	engines, blockSize, dropped int
}

func (v variant) expectation(o *Options) expectation {
	return expectation{
		name: v.key, offload: v.offload, everyTier: v.key == "ours" && v.offload, hybrid: o.Hybrid, traced: o.Trace != "", inTurn: v.mode == modeRoundRobin,
		engines: o.Engines, blockSize: o.BlockSize, dropped: o.DropFrames * o.Engines,
	}
}

// verdict returns the reasons why a run fails, one line each, and notes for the reader. e says
// what the run should have shown. A check that had nothing to look at fails too.
func verdict(e expectation, r *RunReport) (reasons, notes []string) {
	j := judge{name: e.name}
	j.requests(r)
	j.tiers(&e, r)
	j.spread(&e, r)
	j.events(&e, r)
	j.end(r)
	j.credit(&e, r)
	return j.reasons, j.notes
}

// judge collects reasons and notes.
type judge struct {
	name    string
	reasons []string
	notes   []string
}

func (j *judge) fail(format string, args ...any) {
	j.reasons = append(j.reasons, j.name+": "+fmt.Sprintf(format, args...))
}

// unused reports a tier that served nothing.
func (j *judge) unused(e *expectation, tier string) {
	if e.traced {
		j.notes = append(j.notes, j.name+": the trace never needed the "+tier+" tier")
		return
	}
	j.fail("no token was served from the %s tier", tier)
}

// requests checks that every request was answered and its tokens accounted for.
func (j *judge) requests(r *RunReport) {
	if r.Requests == 0 {
		j.fail("no request was sent")
	}
	if r.Failed > 0 {
		j.fail("%d of %d requests failed", r.Failed, r.Requests)
	}
	if sum := r.Served.sum(); sum != r.InputTokens || r.misserved > 0 {
		j.fail("served tokens add up to %d, the prompts that were sent to %d; %d requests differ", sum, r.InputTokens, r.misserved)
	}
	for _, e := range r.firstErrors {
		j.fail("%s", e)
	}
}

// tiers checks that the run used its tiers and that every loaded block was compared.
func (j *judge) tiers(e *expectation, r *RunReport) {
	if r.WrongBytes > 0 {
		j.fail("%d wrong bytes in %d verified blocks", r.WrongBytes, r.BlocksVerified)
	}
	loaded := r.Served.Host + r.Served.Disk
	if r.BlocksVerified*uint64(e.blockSize) < loaded {
		j.fail("%d blocks of %d tokens were verified, but %d tokens were loaded", r.BlocksVerified, e.blockSize, loaded)
	}
	switch {
	case !e.offload && (loaded > 0 || r.BlocksVerified > 0):
		j.fail("%d tokens served from host and disk and %d blocks loaded, though these tiers are off", loaded, r.BlocksVerified)
	case e.offload && !e.everyTier && loaded == 0 && !e.traced:
		j.fail("no token was served from host or disk, though these tiers are on")
	}
	if !e.everyTier {
		return
	}
	for _, t := range []struct {
		name   string
		tokens uint64
	}{{"device", r.Served.Device}, {"host", r.Served.Host}, {"disk", r.Served.Disk}} {
		if t.tokens == 0 {
			j.unused(e, t.name)
		}
	}
}

// spread checks that requests given out in turn reached every engine equally often. The
// router takes one request at a time, so the order of arrival does not matter. A failed
// request may have had a turn without a count; then there is nothing to check.
func (j *judge) spread(e *expectation, r *RunReport) {
	if !e.inTurn || r.Failed > 0 {
		return
	}
	least, most := r.Requests, 0
	for _, n := range r.ByEngine {
		least, most = min(least, n), max(most, n)
	}
	if len(r.ByEngine) < e.engines {
		least = 0
	}
	if most-least > 1 {
		j.fail("requests were not given out in turn: one engine answered %d of them, another one %d", least, most)
	}
}

// events checks that there were events, and that the gaps of dropped frames were found
// and repaired. Neighbouring dropped frames make one gap.
func (j *judge) events(e *expectation, r *RunReport) {
	if r.Events.In == 0 || r.Events.Out == 0 {
		j.fail("the agents took in %d events and published %d", r.Events.In, r.Events.Out)
	}
	if want := min(e.dropped, minFramesDropped); r.FramesDropped < uint64(want) {
		j.fail("%d event frames were left out, want at least %d", r.FramesDropped, want)
	}
	if r.FramesDropped > 0 && r.Events.Gaps == 0 {
		j.fail("%d event frames were left out and no gap was found", r.FramesDropped)
	}
	if r.Events.Repaired != r.Events.Gaps {
		j.fail("%d of %d gaps were repaired", r.Events.Repaired, r.Events.Gaps)
	}
	if r.Events.Lost > 0 {
		j.fail("%d gaps were lost", r.Events.Lost)
	}
	if r.Resets == 0 {
		j.fail("no engine cache was reset")
	}
}

// credit checks that the router credited each engine of a hybrid model with what it and its agent find,
// and that the window and the agent made a difference.
func (j *judge) credit(e *expectation, r *RunReport) {
	switch {
	case !e.hybrid:
	case r.CreditDiverged > 0:
		j.fail("the router's credit differs from what engines find or serve for %d of %d prompts and engines", r.CreditDiverged, r.CreditCompared+r.Promises)
	case r.CreditBlocks == 0:
		j.fail("no engine finds a block of %d prompts and engines: their credit shows nothing", r.CreditCompared)
	case r.CreditWithoutWindow <= r.CreditBlocks:
		j.fail("full attention alone finds %d blocks, with the window %d: the window shows nothing", r.CreditWithoutWindow, r.CreditBlocks)
	case r.CreditStored == 0:
		j.fail("no agent has a block that its engine lacks, of %d prompts and engines: FIT shows nothing", r.CreditCompared)
	case r.Promises == 0:
		j.fail("no prompt was sent to an engine that has to load its blocks")
	}
}

// end checks the end of the run: no work is pending, the router's index equals what the owners hold,
// and no process and no file is left.
func (j *judge) end(r *RunReport) {
	if !r.Settled {
		j.fail("did not come to rest: %s", r.unsettled)
	}
	for _, u := range r.Unsound {
		j.fail("%s", u)
	}
	switch {
	case r.Diverged > 0:
		j.fail("%d of %d (owner, block, tier) triples differ between the router and their owners", r.Diverged, r.Compared)
	case r.Settled && r.Compared == 0:
		j.fail("no block was compared between the router and its owner")
	}
	for _, u := range r.Unclean {
		j.fail("%s", u)
	}
}
