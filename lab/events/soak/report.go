package soak

import (
	"errors"
	"fmt"
	"strings"
)

// report prints the figures of a run and returns its verdict. err is the error that
// ended the run early, or nil.
func (o *Options) report(t *tally, err error) error {
	if err != nil {
		return fmt.Errorf("soak-events: %w (seed %d)", err, o.Seed)
	}
	var b strings.Builder
	for _, n := range t.notes {
		fmt.Fprintf(&b, "  %s\n", n)
	}
	fmt.Fprintf(&b, "rounds %d; router restarted %d times, stopped %d times; prefix caches reset %d times\n",
		t.rounds, t.routerRestarts, t.routerStops, t.resets)
	fmt.Fprintf(&b, "agents killed at rest %d times: of the devices' blocks the router knew %.2f %% at once, at least;"+
		" %d engines had more frames behind them than they can replay\n", t.calm, 100*t.kept, t.beyond)
	fmt.Fprintf(&b, "seed %d\n", o.Seed)
	fmt.Fprintf(&b, "soak-events: events=%d compared=%d dropped_frames=%d broker_restarts=%d agent_restarts=%d engine_restarts=%d lost=%d diverged=%d\n",
		t.events, t.compared, t.dropped, t.brokerRestarts, t.agentRestarts, t.engineRestarts, t.lost, t.diverged)
	_, err = fmt.Fprint(o.Out, b.String())
	return errors.Join(err, t.verdict(o))
}

// verdict returns an error for a run that found the router's index wrong, and for a run that
// proves nothing because it saw no event or no fault of a kind.
func (t *tally) verdict(o *Options) error {
	var wrong []string
	note := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	note(t.lost > 0 || t.diverged > 0, "lost=%d diverged=%d", t.lost, t.diverged)
	note(t.kept < minKept, "an agent's restart kept %.2f %% of the devices' blocks, want %.0f %%", 100*t.kept, 100*minKept)
	note(len(wrong) == 0 && len(t.notes) > 0, "not everything came to rest")
	if len(wrong) == 0 {
		for _, c := range []struct {
			what  string
			count uint64
		}{
			{"event", t.events}, {"comparison", t.compared}, {"dropped frame", t.dropped},
			{"restart of the broker", t.brokerRestarts}, {"restart of an agent", t.agentRestarts},
			{"restart of an engine", t.engineRestarts}, {"restart of a router", t.routerRestarts},
		} {
			note(c.count == 0, "the run proves nothing: it saw no %s", c.what)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("soak-events: %s (seed %d)", strings.Join(wrong, "; "), o.Seed)
}
