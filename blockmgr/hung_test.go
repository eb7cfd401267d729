package blockmgr

import (
	"testing"
)

// A session that pins all it finds and hangs leaves a quarter of the tier, and so does
// the next one of what is left.
func TestPinsOfHungSessionsLeaveRoom(t *testing.T) {
	p := newTestPool(t, Config{HostBytes: hostBytes(512), SharePins: true})
	hog, next := p.begin(), p.begin()
	pinned := map[SessionID]int{}
	for _, s := range []SessionID{hog, next} {
		for seed := uint64(1); seed <= 8; seed++ {
			p.store(chain(seed, 64))
			p.quiesce()
			res, err := p.Lookup(t.Context(), s, chain(seed, 64))
			if err != nil {
				t.Fatal(err)
			}
			pinned[s] += len(res.Slots)
		}
	}
	st := p.Stats()
	// The next one pins what the first has pinned too.
	if pinned[hog] != 384 || st.PinnedSlotsMost != 384 || st.PinnedSlots > 480 || st.PinsRefused == 0 {
		t.Errorf("pinned %d, then %d; %d slots in all, at most %d by one session, %d refused", pinned[hog], pinned[next], st.PinnedSlots, st.PinnedSlotsMost, st.PinsRefused)
	}
	if n := p.store(chain(100, 32)); n != 32 {
		t.Errorf("another session stored %d of 32 blocks beside %d pinned slots", n, st.PinnedSlots)
	}
	// What is pinned already may be pinned again.
	if res, err := p.Lookup(t.Context(), hog, chain(1, 64)); err != nil || len(res.Slots) != 64 {
		t.Errorf("%d of 64 slots pinned again, %v", len(res.Slots), err)
	}
	p.EndSession(hog, nil)
	p.EndSession(next, nil)
	if st := p.Stats(); st.PinnedSlots != 0 || st.PinnedSlotsMost != 0 {
		t.Errorf("%d pinned slots, at most %d, without sessions that pin", st.PinnedSlots, st.PinnedSlotsMost)
	}
}
