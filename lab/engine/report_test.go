package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// announced returns what the engine's events say that it holds, a hash as often as it was
// stored and not removed, sorted.
func (e *testEngine) announced() []kv.EngineHash {
	held := map[kv.EngineHash]int{}
	for _, b := range e.batches {
		for _, ev := range b.Events {
			switch ev.Kind {
			case kvevent.Cleared:
				clear(held)
			case kvevent.Stored:
				for _, h := range ev.BlockHashes {
					held[h]++
				}
			case kvevent.Removed:
				for _, h := range ev.BlockHashes {
					held[h]--
				}
			}
		}
	}
	var all []kv.EngineHash
	for h, n := range held {
		for range n {
			all = append(all, h)
		}
	}
	slices.Sort(all)
	return all
}

// The list is what the events announced and did not take back: after stores, hits,
// evictions and a reset, and with two blocks of one content.
func TestListIsWhatEventsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(12)
		o.MaxBatchedTokens = 64
		e := newTestEngine(o, nil)
		defer e.start(t)()
		session := newSession(&o, hello(&o, 1, "", ""), e.device, zap.NewNop(), &e.counts)
		if _, err := session.cached(t.Context()); !errors.Is(err, errStarting) {
			t.Errorf("before the pool is there: error %v", err)
		}
		session.attend(e.core)
		check := func(when string, least int) {
			t.Helper()
			synctest.Wait()
			got, err := session.cached(t.Context())
			slices.Sort(got)
			if err != nil || !slices.Equal(got, e.announced()) || len(got) < least {
				t.Errorf("%s: %d hashes listed, %d announced, want %d at least; error %v", when, len(got), len(e.announced()), least, err)
			}
		}
		check("empty", 0)
		var twice []*request
		for range 2 {
			r, err := e.api.newRequest(&GenerateRequest{Tokens: tokenRun(0, 16), OutputTokens: 2})
			if err != nil {
				t.Fatal(err)
			}
			twice = append(twice, r)
		}
		e.ask(func() { // for one step, which makes two blocks of each content
			for _, r := range twice {
				if err := e.submit(r); err != nil {
					t.Error(err)
				}
			}
		})
		for _, r := range twice {
			result(r)
		}
		check("after the same prompt twice at a time", 8)
		for i := range 6 {
			result(e.generate(tokenRun(100*i, 20), 2))
		}
		check("after evictions", 8)
		e.ask(func() { e.reset() })
		check("after a reset", 0)
		result(e.generate(tokenRun(0, 8), 1))
		check("after another prompt", 2)
	})
}

func TestEngineTellsHowItStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := newFakeAgent(testNaming(), 64)
		o := testOptions(12)
		o.StepBase = 100 * time.Millisecond
		e := newTestEngine(o, agent)
		defer e.start(t)()
		e.session.attend(e.core)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); e.session.report(ctx, e.session.current.Load()) }()
		synctest.Wait()                        // counting begins
		result(e.generate(tokenRun(0, 8), 15)) // 15 steps, and then it is idle
		time.Sleep(statsInterval)
		cancel()
		<-done
		agent.mu.Lock()
		defer agent.mu.Unlock()
		if len(agent.reports) != 2 {
			t.Fatalf("%d reports in 2.5 seconds, want 2", len(agent.reports))
		}
		if r := agent.reports[0]; r.DeviceBlocksTotal != 12 || r.DeviceBlocksUsed < 4 || r.RunningRequests != 1 || r.Lookups != 1 {
			t.Errorf("while it ran the report was %+v", r)
		}
		if r := agent.reports[1]; r.DeviceBlocksUsed != 0 || r.RunningRequests != 0 || r.StoredBlocks != 5 {
			t.Errorf("when it was done the report was %+v", r)
		}
	})
}
