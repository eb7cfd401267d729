package blockmgr

import (
	"slices"
	"testing"
)

func TestPreviousSessionsNameTheirProcesses(t *testing.T) {
	cfg := restartConfig(t, false)
	first := openTestManager(t, cfg).openOther("test")
	procs := []Process{{PID: 100, Start: 5}, {PID: 101, Start: 6}}
	noError(t, first.BeginSession(7, procs[0]))
	noError(t, first.AddProcess(7, procs[1]))
	first.EndSession(first.sid, nil)
	first.m.Abandon()
	p := openTestManager(t, cfg)
	defer p.m.Close()
	if f := p.m.Previous(); len(f) != 1 || !slices.Equal(f[0].Processes, procs) || f[0].Foreign {
		t.Errorf("%+v", f)
	}
}

func TestPreviousSessionThatHoldsNothingIsForgottenAndNoOther(t *testing.T) {
	cfg := restartConfig(t, false)
	p := openTestPool(t, cfg)
	granted, pinned, idle := p.begin(), p.begin(), p.begin()
	p.store(chain(1, 2))
	p.quiesce()
	p.pin(pinned, chain(1, 1))
	p.grant(granted, chain(2, 1))
	p.EndSession(p.sid, nil)
	p.m.Abandon()

	again := openTestPool(t, cfg)
	defer again.finish()
	if got := again.m.ForgetIdle(again.Pool); !slices.Equal(got, []SessionID{idle}) {
		t.Errorf("forgotten %v, want %v", got, idle)
	}
	if got := again.m.ForgetIdle(again.Pool); len(got) != 0 {
		t.Errorf("forgotten twice: %v", got)
	}
	for _, f := range again.m.Previous() {
		if f.Session != granted && f.Session != pinned {
			t.Errorf("session %d is still waited for", f.Session)
		}
		again.m.Forget(f.Session)
	}
	if n := len(again.broker.host.Sessions().All()); n != 1 {
		t.Errorf("%d sessions are on record, want the one of this test", n)
	}
}
