package blockmgr

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// An engine that hangs with a granted slot does not keep its block from the others.
func TestBlockOfAHungGrantIsGrantedToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(t, Config{HostBytes: hostBytes(64)})
		blocks := chain(1, 8)
		hung := p.begin()
		held := p.grant(hung, blocks[:1])
		time.Sleep(grantTimeout - time.Millisecond)
		if res, err := p.Grant(p.sid, blocks[:1], 0); err != nil || res.Present != 1 {
			t.Errorf("%+v, %v; want the block to be present for %v", res, err, grantTimeout)
		}
		if st := p.Stats(); st.GrantsOverdue != 0 || st.GrantsLate != 0 {
			t.Errorf("%d overdue, %d late before the time", st.GrantsOverdue, st.GrantsLate)
		}
		time.Sleep(time.Millisecond)
		if st := p.Stats(); st.GrantsOverdue != 1 {
			t.Errorf("%d overdue grants, want 1", st.GrantsOverdue)
		}
		if n := p.store(blocks); n != 8 {
			t.Errorf("another engine stored %d of 8 blocks", n)
		}
		if n := len(p.find(blocks)); n != 8 {
			t.Errorf("found %d of 8 blocks", n)
		}
		st := p.Stats()
		if st.GrantsSuperseded != 1 || st.GrantsLate != 1 || st.GrantsOverdue != 1 {
			t.Errorf("%d superseded, %d late, %d overdue; want 1 each", st.GrantsSuperseded, st.GrantsLate, st.GrantsOverdue)
		}
		p.check()
		// The engine comes back: its slot was not given to anybody, and is free now.
		p.write(held[0], p.content(&blocks[0], 1))
		if err := p.Commit(hung, held); err != nil {
			t.Error(err)
		}
		if n := len(p.find(blocks)); n != 8 {
			t.Errorf("found %d of 8 blocks after the late commit", n)
		}
		st = p.Stats()
		if st.Host.Granted != 0 || st.GrantsLate != 0 || st.GrantsOverdue != 0 || st.Deduplicated != 1 {
			t.Errorf("%d granted, %d late, %d overdue, %d deduplicated; want 0, 0, 0, 1", st.Host.Granted, st.GrantsLate, st.GrantsOverdue, st.Deduplicated)
		}
		p.EndSession(hung, nil)
	})
}

// Of two engines that both take long for a block, the one that commits first has
// stored it.
func TestFirstOfTwoSlowEnginesStoresTheBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(t, Config{HostBytes: hostBytes(64)})
		blocks := chain(1, 2)
		slow, slower := p.begin(), p.begin()
		first := p.grant(slow, blocks)
		time.Sleep(grantTimeout)
		second := p.grant(slower, blocks)
		for i, s := range first {
			p.write(s, p.content(&blocks[i], 0))
		}
		if err := p.Commit(slow, first); err != nil {
			t.Fatal(err)
		}
		if n := len(p.find(blocks)); n != 2 {
			t.Errorf("found %d of 2 blocks after the first commit", n)
		}
		p.check()
		for i, s := range second {
			p.write(s, p.content(&blocks[i], 1))
		}
		if err := p.Commit(slower, second); err != nil {
			t.Fatal(err)
		}
		if n := len(p.find(blocks)); n != 2 { // and compares the bytes
			t.Errorf("found %d of 2 blocks after the second commit", n)
		}
		if st := p.Stats(); st.Host.Granted != 0 || st.GrantsLate != 0 || st.Deduplicated != 2 || st.Blocks != 2 {
			t.Errorf("%d granted, %d late, %d deduplicated, %d blocks; want 0, 0, 2, 2", st.Host.Granted, st.GrantsLate, st.Deduplicated, st.Blocks)
		}
		p.check()
		// The other one may give up.
		more := chain(2, 1)
		first = p.grant(slow, more)
		time.Sleep(grantTimeout)
		if err := p.Abort(slower, p.grant(slower, more)); err != nil {
			t.Fatal(err)
		}
		p.write(first[0], p.content(&more[0], 0))
		if err := p.Commit(slow, first); err != nil {
			t.Fatal(err)
		}
		if n := len(p.find(more)); n != 1 {
			t.Errorf("found %d of 1 blocks", n)
		}
		p.EndSession(slow, nil)
		p.EndSession(slower, nil)
	})
}

// A hung engine that dies leaves its slot in quarantine until its processes are gone,
// and the next agent gives the slot back to it as one that comes too late.
func TestSupersededGrantOutlivesItsSessionAndTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := restartConfig(t, false)
		first := openTestPool(t, cfg)
		blocks := chain(1, 2)
		held := first.grant(first.sid, blocks)
		time.Sleep(grantTimeout)
		other := first.begin()
		first.grant(other, blocks[:1])
		gone := make(chan struct{})
		if !first.EndSession(other, gone) {
			t.Error("nothing waits for the writer of the granted slot")
		}
		if st := first.Stats(); st.Host.Quarantined != 1 || st.Host.Granted != 2 {
			t.Errorf("%d quarantined, %d granted; want 1 and 2", st.Host.Quarantined, st.Host.Granted)
		}
		close(gone)
		synctest.Wait()
		first.grant(first.begin(), blocks[:1])
		first.m.Abandon()

		p := openTestPool(t, cfg)
		defer p.finish()
		heir := p.begin()
		granted, _, err := p.Resume(heir, first.sid, held, nil)
		if err != nil || len(granted) != 2 {
			t.Fatalf("%d slots resumed, %v; want 2", len(granted), err)
		}
		for i := range granted {
			p.write(granted[i], p.content(&blocks[i], 0))
		}
		if err := p.Commit(heir, granted); err != nil {
			t.Error(err)
		}
		if n := len(p.find(blocks)); n != 2 {
			t.Errorf("found %d of 2 blocks", n)
		}
	})
}

func TestRegisterDoesNotWaitForAHungGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestPool(t, Config{HostBytes: hostBytes(8)})
		hung := p.begin()
		block := chain(1, 1)[0]
		p.grant(hung, []Block{block})
		made, err := p.Allocate(p.sid, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := made[0].ApplyTokenBlock(TokenBlock{Block: block, Tokens: make([]uint32, 16)}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Register(p.sid, made); !errors.Is(err, ErrFilling) {
			t.Errorf("got %v, want %v", err, ErrFilling)
		}
		time.Sleep(grantTimeout)
		handles, err := p.Register(p.sid, made)
		if err != nil || len(handles) != 1 {
			t.Fatalf("%d registered, %v", len(handles), err)
		}
		handles[0].Release()
		p.EndSession(hung, nil)
	})
}

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
