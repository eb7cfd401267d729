package blockmgr

import (
	"slices"
	"testing"
)

func TestFormerSessionThatHoldsNothingIsForgottenAndNoOther(t *testing.T) {
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
