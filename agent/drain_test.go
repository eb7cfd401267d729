package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// stopping starts to stop the agent; the channel is closed when it has.
func (a *testAgent) stopping() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.stop()
	}()
	return done
}

// An agent that stops gives its engines the time to finish: what they commit
// then is there at the next start, and nothing is left in quarantine.
func TestAgentThatStopsLetsEnginesSettleFirst(t *testing.T) {
	cfg := testConfig(t)
	cfg.DrainTimeout = time.Minute // nobody waits as long
	a := startAgent(t, cfg)
	c, other := a.Scheduler(t, 1), a.Scheduler(t, 2)
	r := proto.RequestID{ID: 1}
	agenttest.Open(t, c, r, 1, 3)
	slots := agenttest.Grant(t, c, r, 0, 3)
	stopped := a.stopping()
	for _, s := range []*proto.SchedulerClient{c, other} {
		d := <-s.Draining()
		if d.Reason == "" || d.DeadlineMillis == 0 || d.DeadlineMillis > 60_000 {
			t.Errorf("got %+v, want a reason and at most a minute", d)
		}
	}
	agenttest.Bye(t, other)
	for i, s := range slots {
		agenttest.Fill(t, c, s, 1, i)
	}
	agenttest.NoError(t, c.Commit(t.Context(), r, slots))
	select {
	case <-stopped:
		t.Fatal("the agent did not wait for its engine")
	default:
	}
	agenttest.Bye(t, c)
	<-stopped
	b := startAgent(t, cfg)
	b.WantFound(t, b.Scheduler(t, 1), 1, 3)
	if n := b.Stats().Pools[0].Host.Quarantined; n != 0 {
		t.Errorf("%d slots are in quarantine", n)
	}
}

// An engine that does not answer DRAIN, or does not read it, holds the agent up to
// the deadline and not for the hour of its send timeout.
func TestAgentThatStopsWaitsNoLongerThanItSays(t *testing.T) {
	cfg := testConfig(t)
	cfg.DrainTimeout, cfg.SendTimeout = 50*time.Millisecond, time.Hour
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	a.RawScheduler(t, 2)
	start := time.Now()
	stopped := a.stopping()
	agenttest.Eventually(t, "the agent stops at its deadline", func() bool {
		select {
		case <-stopped:
			return true
		default:
			return false
		}
	})
	if d := time.Since(start); d < cfg.DrainTimeout {
		t.Errorf("it took %v, want at least %v", d, cfg.DrainTimeout)
	}
	<-c.Done()
	if d := <-c.Draining(); d.DeadlineMillis > 50 {
		t.Errorf("DRAIN said %d ms, want at most 50", d.DeadlineMillis)
	}
}

func TestNoSessionBeginsWhileTheAgentDrains(t *testing.T) {
	cfg := testConfig(t)
	cfg.DrainTimeout = time.Minute
	a := startAgent(t, cfg)
	c := a.Scheduler(t, 1)
	late := a.Raw(t)
	agenttest.Eventually(t, "the connection is accepted", func() bool { return a.Stats().Engines.Connections == 2 })
	stopped := a.stopping()
	<-c.Draining()
	h := agenttest.Hello(2)
	h.Major, h.Role = proto.VersionMajor, string(proto.RoleScheduler)
	agenttest.Send(t, late, proto.TypeHello, 1, &h)
	if e := agenttest.WantError(t, late, 1, proto.CodeState); !e.Retryable {
		t.Error("the refusal is not retryable")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := proto.Dial(ctx, cfg.Socket); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want a connection refused", err)
	}
	agenttest.Bye(t, c)
	<-stopped
}

// The OK of the BYE that lets the agent stop is on its way before the connections close.
func TestByeThatEndsTheDrainIsAnswered(t *testing.T) {
	for range 5 {
		cfg := testConfig(t)
		cfg.DrainTimeout = time.Minute
		a := startAgent(t, cfg)
		c := a.Scheduler(t, 1)
		stopped := a.stopping()
		<-c.Draining()
		agenttest.Bye(t, c)
		<-stopped
	}
}
