package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/proto"
)

// die ends the agent's connections while its slots and blocks stay, as kill -9
// does, and takes the engine's link off as its session does.
func (e *testEngine) die(agent *fakeAgent) (left *liveLink) {
	left = e.session.current.Swap(nil)
	agent.Close()
	left.lose()
	return left
}

// comeBack has the engine connect to the agent again and go on with what left
// held.
func (e *testEngine) comeBack(t *testing.T, agent *fakeAgent, left *liveLink) {
	t.Helper()
	agent.revive()
	l := &liveLink{link: newLink(agent, agent, e.device, e.opts.LookupWait, &e.counts), limit: 1000, enabled: true}
	again, err := e.session.resume(t.Context(), left, l)
	if again != nil || err != nil {
		t.Errorf("resume: left %v, error %v", again, err)
	}
	e.session.current.Store(l)
}

func TestBlocksFilledWhenTheAgentDiedAreStoredByTheNext(t *testing.T) {
	for _, keep := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			agent := newFakeAgent(testNaming(), 64)
			agent.keep, agent.stored = keep, make(chan struct{})
			e := newTestEngine(testOptions(32), agent)
			defer e.start(t)()
			r := e.generate(tokenRun(0, 16), 1)
			<-time.After(time.Minute) // of the bubble's time: COMMIT is on its way
			left := e.die(agent)
			close(agent.stored)
			result(r)
			synctest.Wait()
			want := 0
			if keep {
				want = 4
			}
			e.comeBack(t, agent, left)
			if len(agent.resumes) != 1 || len(agent.resumes[0].Granted) != 4 || len(agent.index) != want {
				t.Errorf("keep %v: RESUME named %+v, the agent then holds %d blocks, want %d", keep, agent.resumes, len(agent.index), want)
			}
			if s := e.counts.snapshot(); s.BlocksResumed != uint64(want) || s.Resumes != 1 {
				t.Errorf("keep %v: %d sessions resumed, %d blocks", keep, s.Resumes, s.BlocksResumed)
			}
			e.checkSettled(t, agent)
		})
	}
}

func TestLoadUnderWayWhenTheAgentDiedEndsWellAndIsReleasedByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := filledAgent(t)
		agent.gate, agent.keep = make(chan struct{}), true
		e := newTestEngine(testOptions(32), agent)
		defer e.start(t)()
		r := e.generate(prompt17(), 1)
		synctest.Wait() // the copier has begun
		left := e.die(agent)
		back := make(chan struct{})
		go func() {
			defer close(back)
			e.comeBack(t, agent, left)
		}()
		synctest.Wait()
		agent.mu.Lock()
		if len(agent.resumes) != 1 || len(agent.resumes[0].Pinned) != 4 {
			t.Errorf("RESUME named %+v while 4 blocks were being read", agent.resumes)
		}
		agent.mu.Unlock()
		select {
		case <-back:
			t.Error("the pins were given back while blocks were being read")
		default:
		}
		close(agent.gate)
		<-back
		served, _, err := result(r)
		if want := (Served{Host: 16, Recomputed: 1}); err != nil || served != want {
			t.Errorf("served %+v (%v), want %+v", served, err, want)
		}
		e.checkSettled(t, agent)
	})
}

func TestGrantThatComesAfterTheAgentDiedIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := newFakeAgent(testNaming(), 64)
		l := newLink(agent, agent, newDevice(1, 64), 0, new(counters))
		l.lose()
		slots := []proto.Slot{{Index: 1, Generation: 1}}
		if l.beginStore(slots) || l.beginLoad(slots) {
			t.Error("a copy began that the next agent is not told of")
		}
		if h := l.held(); len(h.Granted)+len(h.Pinned) != 0 {
			t.Errorf("held %+v", h)
		}
		l.close()
	})
}

func TestMoreThanARESUMEHoldsIsNamedOnceItsCopiesHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := newFakeAgent(testNaming(), 64)
		l := newLink(agent, agent, newDevice(1, 64), 0, new(counters))
		slots := make([]proto.Slot, proto.MaxResumeSlots+1)
		for i := range slots {
			slots[i].Index = uint32(i)
		}
		if !l.beginStore(slots) {
			t.Fatal("a link that stands refuses a store")
		}
		l.lose()
		held := make(chan proto.Held)
		go func() { held <- l.held() }()
		synctest.Wait()
		select {
		case <-held:
			t.Fatal("slots that are being written were left out")
		default:
		}
		l.endStore(slots, true)
		if h := <-held; len(h.Granted) != proto.MaxResumeSlots {
			t.Errorf("%d slots are named, want %d", len(h.Granted), proto.MaxResumeSlots)
		}
		l.close()
	})
}

// An agent that is about to stop gets what was filled, and then BYE; there is
// nothing for the next one to be told.
func TestAgentThatStopsGetsWhatIsUnderWayAndThenBye(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := newFakeAgent(testNaming(), 64)
		agent.stored = make(chan struct{})
		e := newTestEngine(testOptions(32), agent)
		defer e.start(t)()
		left := make(chan *liveLink, 1)
		go func() { left <- e.session.serve(t.Context(), e.session.current.Load()) }()
		r := e.generate(tokenRun(0, 16), 1)
		<-time.After(time.Minute) // of the bubble's time: COMMIT is on its way
		agent.drain <- proto.Drain{DeadlineMillis: 2000}
		synctest.Wait()
		if e.session.current.Load() != nil || agent.byes != 0 {
			t.Errorf("after DRAIN: link %v, %d times BYE while a COMMIT is on its way", e.session.current.Load(), agent.byes)
		}
		close(agent.stored)
		if l := <-left; l != nil || len(agent.index) != 4 || agent.byes != 1 {
			t.Errorf("left %v, the agent holds %d blocks and heard BYE %d times: want nothing, 4 and once", l, len(agent.index), agent.byes)
		}
		result(r)
	})
}

// What does not end in time is not waited for.
func TestEngineWaitsForItsCopiesNoLongerThanTheAgentThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := newFakeAgent(testNaming(), 64)
		agent.stored = make(chan struct{})
		e := newTestEngine(testOptions(32), agent)
		defer e.start(t)()
		r := e.generate(tokenRun(0, 16), 1)
		<-time.After(time.Minute)
		l := e.session.current.Swap(nil)
		begin := time.Now()
		l.drain(t.Context(), 2*time.Second)
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("took %s, want 2 s", took)
		}
		close(agent.stored)
		result(r)
		synctest.Wait()
		l.close()
	})
}
