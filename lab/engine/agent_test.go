package engine

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// filledAgent returns an agent to which another engine has stored the 4 full blocks
// of tokenRun(0, 16).
func filledAgent(t *testing.T) *fakeAgent {
	t.Helper()
	agent := newFakeAgent(testNaming(), 64)
	e := newTestEngine(testOptions(32), agent)
	stop := e.start(t)
	result(e.generate(tokenRun(0, 16), 1))
	e.checkSettled(t, agent)
	stopCoreOnly(e, stop)
	if len(agent.index) != 4 {
		t.Fatalf("agent holds %d blocks, want 4", len(agent.index))
	}
	return agent
}

// stopCoreOnly stops e but leaves its agent serving.
func stopCoreOnly(e *testEngine, stop func()) {
	l := e.session.current.Swap(nil)
	stop()
	agent := l.sched.(*fakeAgent)
	l.close()
	agent.revive()
}

// revive makes a fake agent serve again after its connections have ended.
func (f *fakeAgent) revive() {
	fresh := newFakeAgent(f.naming, f.blockBytes)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended, f.loads, f.done = false, fresh.loads, fresh.done
}

func prompt17() []uint32 { return tokenRun(0, 17) }

func TestBlocksStoredByOneEngineAreLoadedAndVerifiedByAnother(t *testing.T) {
	for tier, want := range map[kv.Tier]Served{
		kv.TierHost: {Host: 16, Recomputed: 1},
		kv.TierDisk: {Disk: 16, Recomputed: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			agent := filledAgent(t)
			agent.tier = tier
			e := newTestEngine(testOptions(32), agent)
			defer e.start(t)()
			served, _, err := result(e.generate(prompt17(), 1))
			if err != nil || served != want {
				t.Errorf("served %+v (%v), want %+v", served, err, want)
			}
			e.checkSettled(t, agent)
			if s := e.counts.snapshot(); s.BlocksVerified != 4 || s.WrongBytes != 0 || s.BlocksLoaded != 4 || s.StoresPresent != 4 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestLoadsBeginWhereTheDeviceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := filledAgent(t)
		e := newTestEngine(testOptions(32), agent)
		defer e.start(t)()
		result(e.generate(tokenRun(0, 8), 1)) // its first block comes from the host, its second is computed
		served, _, _ := result(e.generate(prompt17(), 1))
		if want := (Served{Device: 8, Host: 8, Recomputed: 1}); served != want {
			t.Errorf("served %+v, want %+v", served, want)
		}
		e.checkSettled(t, agent)
	})
}

func TestWrongBytesAreCountedAndNeverServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := filledAgent(t)
		ids := newSequence(testNaming(), prompt17()).ids
		agent.flip(ids[1].key.InGroup(0), 0)
		agent.flip(ids[1].key.InGroup(0), 63)
		agent.flip(ids[3].key.InGroup(0), 32)
		e := newTestEngine(testOptions(32), agent)
		defer e.start(t)()
		served, _, err := result(e.generate(prompt17(), 1))
		// One good block, then a bad one: the rest of the prefix is recomputed.
		if want := (Served{Host: 4, Recomputed: 13}); err != nil || served != want {
			t.Errorf("served %+v (%v), want %+v", served, err, want)
		}
		e.checkSettled(t, agent) // compares every byte on the device
		if s := e.counts.snapshot(); s.WrongBytes != 3 || s.BlocksVerified != 4 || s.LoadsFailed != 3 || s.BlocksLoaded != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestSlotGrantedAgainUnderALoadIsAFailedLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := filledAgent(t)
		agent.staleOnLoad = true
		e := newTestEngine(testOptions(32), agent)
		defer e.start(t)()
		served, _, err := result(e.generate(prompt17(), 1))
		if want := (Served{Recomputed: 17}); err != nil || served != want {
			t.Errorf("served %+v (%v), want %+v", served, err, want)
		}
		if s := e.counts.snapshot(); s.LoadsFailed != 4 || s.BlocksVerified != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestLoadThatNeverComesIsRecomputed(t *testing.T) {
	for name, lose := range map[string]bool{"connection lost": true, "connection stands": false} {
		synctest.Test(t, func(t *testing.T) {
			agent := filledAgent(t)
			agent.dropLoads = true
			e := newTestEngine(testOptions(32), agent)
			defer e.start(t)()
			r := e.generate(prompt17(), 1)
			synctest.Wait()
			begin := time.Now()
			if lose {
				agent.Close()
			}
			served, out, err := result(r)
			if served.Recomputed != 17 || len(out) != 1 || err != nil {
				t.Errorf("%s: served %+v, output %v (%v)", name, served, out, err)
			}
			if took := time.Since(begin); lose && took > time.Second {
				t.Errorf("%s: took %s", name, took)
			}
			e.checkSettled(t, nil)
		})
	}
}

func TestAgentLostWhileABlockIsCopiedDoesNotFreeItsTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := filledAgent(t)
		agent.gate = make(chan struct{})
		e := newTestEngine(testOptions(32), agent)
		defer e.start(t)()
		r := e.generate(prompt17(), 1)
		synctest.Wait()
		agent.Close()
		e.post(func() { e.abort(r) })
		e.ask(func() {
			if r.phase != loading || len(r.blocks) != 4 {
				t.Errorf("phase %d with %d blocks: the copier still writes them", r.phase, len(r.blocks))
			}
		})
		close(agent.gate)
		e.checkSettled(t, nil)
	})
}

func TestLongLoadsAreClaimedInFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(3000)
		o.MaxBatchedTokens = 4096
		agent := newFakeAgent(testNaming(), 64)
		first := newTestEngine(o, agent)
		stop := first.start(t)
		long := tokenRun(0, 2500*4+1)
		result(first.generate(long, 1))
		first.checkSettled(t, agent)
		stopCoreOnly(first, stop)
		e := newTestEngine(o, agent)
		defer e.start(t)()
		served, _, _ := result(e.generate(long, 1))
		if want := (Served{Host: 10000, Recomputed: 1}); served != want {
			t.Errorf("served %+v, want %+v", served, want)
		}
		if want := []int{1024, 1024, 452}; !slices.Equal(agent.claims, want) {
			t.Errorf("claims of %v blocks, want %v", agent.claims, want)
		}
		e.checkSettled(t, agent)
	})
}

// The fake agent panics when a request is closed or opened again while it holds
// grants.
func TestGrantsAreSettledBeforeARequestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := newFakeAgent(testNaming(), 64)
		agent.failCommits = true
		e := newTestEngine(testOptions(8), agent)
		defer e.start(t)()
		var requests []*request
		for i := range 4 { // together they do not fit: some are preempted and opened again
			requests = append(requests, e.generate(tokenRun(100*i, 9), 20))
		}
		for _, r := range requests {
			if _, _, err := result(r); err != nil {
				t.Error(err)
			}
		}
		e.checkSettled(t, agent)
		if s := e.counts.snapshot(); s.Preempted == 0 || s.StoresFailed == 0 || s.BlocksStored != 0 {
			t.Errorf("%+v: want preemptions, failed stores and no block stored", s)
		}
	})
}
