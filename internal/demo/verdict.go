package demo

import "fmt"

// minFramesDropped is how many frames must really have been left out for the
// repair to count as shown.
const minFramesDropped = 3

// verdict lists what is wrong with a run, one line each; nothing if all is well.
// tiers says that every tier must have served something.
func verdict(name string, r *RunReport, tiers bool, dropped int) []string {
	var reasons []string
	fail := func(format string, args ...any) {
		reasons = append(reasons, name+": "+fmt.Sprintf(format, args...))
	}
	if r.Failed > 0 {
		fail("%d of %d requests failed", r.Failed, r.Requests)
		for _, e := range r.firstErrors {
			fail("%s", e)
		}
	}
	if r.Requests == 0 {
		fail("no request was sent")
	}
	if sum := r.Served.sum(); sum != r.InputTokens {
		fail("served tokens add up to %d, not to the %d input tokens", sum, r.InputTokens)
	}
	if r.WrongBytes > 0 {
		fail("%d wrong bytes in %d verified blocks", r.WrongBytes, r.BlocksVerified)
	}
	if tiers {
		for _, t := range []struct {
			name   string
			tokens uint64
		}{{"device", r.Served.Device}, {"host", r.Served.Host}, {"disk", r.Served.Disk}} {
			if t.tokens == 0 {
				fail("no token was served from the %s tier", t.name)
			}
		}
	}
	reasons = append(reasons, eventVerdict(name, r, dropped)...)
	if r.Resets == 0 {
		fail("no engine cache was reset")
	}
	if !r.Settled {
		fail("did not come to rest: %s", r.unsettled)
	}
	if r.Diverged > 0 {
		fail("%d of %d (owner, block, tier) triples differ between the router and their owners", r.Diverged, r.Compared)
	}
	for _, u := range r.Unclean {
		fail("%s", u)
	}
	return reasons
}

// eventVerdict checks that the frames left out were missed and made good.
// Frames that are left out side by side make one gap.
func eventVerdict(name string, r *RunReport, dropped int) []string {
	var reasons []string
	fail := func(format string, args ...any) {
		reasons = append(reasons, name+": "+fmt.Sprintf(format, args...))
	}
	if want := min(dropped, minFramesDropped); r.FramesDropped < uint64(want) {
		fail("%d event frames were left out, want at least %d", r.FramesDropped, want)
	}
	if r.FramesDropped > 0 && r.Events.Gaps == 0 {
		fail("%d event frames were left out and no gap was found", r.FramesDropped)
	}
	if r.Events.Repaired != r.Events.Gaps {
		fail("%d of %d gaps were repaired", r.Events.Repaired, r.Events.Gaps)
	}
	if r.Events.Lost > 0 {
		fail("%d gaps were lost", r.Events.Lost)
	}
	return reasons
}
