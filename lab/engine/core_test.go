package engine

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

func sum(s Served) int { return s.Device + s.Host + s.Disk + s.Recomputed }

func TestStepsTakeTheTimeThatTheirTokensCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(64)
		o.PrefillRate, o.StepBase = 1000, 5*time.Millisecond
		e := newTestEngine(o, nil)
		defer e.start(t)()
		begin := time.Now()
		result(e.generate(tokenRun(0, 40), 3))
		// Prefill in steps of 16, 16 and 8 tokens at 1 ms a token, the last of which
		// gives the first output token; then two decode steps.
		if took := time.Since(begin); took != 50*time.Millisecond {
			t.Errorf("took %s, want 50ms", took)
		}
	})
}

func TestPreemptionRecomputesAndChangesNoOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prompts := [][]uint32{tokenRun(0, 9), tokenRun(100, 9), tokenRun(200, 9)}
		var want [][]uint32
		roomy := newTestEngine(testOptions(100), nil)
		stop := roomy.start(t)
		for _, p := range prompts {
			_, out, _ := result(roomy.generate(p, 20))
			want = append(want, out)
		}
		stop()
		e := newTestEngine(testOptions(9), nil)
		defer e.start(t)()
		var requests []*request
		for _, p := range prompts {
			requests = append(requests, e.generate(p, 20))
		}
		for i, r := range requests {
			served, out, err := result(r)
			if err != nil || !slices.Equal(out, want[i]) {
				t.Errorf("request %d: output %v (%v), want %v", i, out, err, want[i])
			}
			if sum(served) != 9 {
				t.Errorf("request %d: served %+v does not add up to 9", i, served)
			}
		}
		if e.counts.snapshot().Preempted == 0 {
			t.Error("nothing was preempted: the test shows nothing")
		}
		e.checkSettled(t, nil)
	})
}

func TestResetIsRefusedWhileBlocksAreReferencedAndLeavesWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEngine(testOptions(16), nil)
		defer e.start(t)()
		r := e.generate(tokenRun(0, 8), 50)
		<-r.updates // it holds blocks now
		e.ask(func() {
			if e.reset() {
				t.Error("reset was accepted while a request holds blocks")
			}
		})
		result(r)
		e.ask(func() {
			if !e.reset() {
				t.Error("reset was refused although nothing is referenced")
			}
		})
		e.checkSettled(t, nil)
		last := e.batches[len(e.batches)-1].Events
		if len(last) != 1 || last[0].Kind != kvevent.Cleared {
			t.Errorf("an idle engine's last batch is %+v, want one clear", last)
		}
		served, _, _ := result(e.generate(tokenRun(0, 8), 1))
		if served.Recomputed != 8 {
			t.Errorf("after the reset: served %+v", served)
		}
	})
}

// generate2 queues two equal requests before the core runs, so that one step
// takes both.
func (e *testEngine) generate2(t *testing.T, prompt []uint32) (a, b *request) {
	var err [4]error
	a, err[0] = e.api.newRequest(&GenerateRequest{Tokens: prompt, OutputTokens: 1})
	b, err[1] = e.api.newRequest(&GenerateRequest{Tokens: prompt, OutputTokens: 1})
	err[2], err[3] = e.submit(a), e.submit(b)
	if joined := errors.Join(err[:]...); joined != nil {
		t.Fatal(joined)
	}
	return a, b
}

func TestFullQueueAndStoppingEngineRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(16)
		o.MaxWaiting = 2
		e := newTestEngine(o, nil)
		e.generate2(t, tokenRun(0, 8))
		r, _ := e.api.newRequest(&GenerateRequest{Tokens: tokenRun(0, 8), OutputTokens: 1})
		if err := e.submit(r); !errors.Is(err, errFull) {
			t.Errorf("third request: %v, want %v", err, errFull)
		}
		stop := e.start(t)
		stop()
		if err := e.api.submit(r); !errors.Is(err, errStopping) {
			t.Errorf("after the end: %v, want %v", err, errStopping)
		}
		if n := e.counts.snapshot().Finished; n != 2 {
			t.Errorf("%d requests finished in the drain, want 2", n)
		}
	})
}

func TestStoppingEngineFailsWhatDoesNotFinishInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions(2000)
		o.StepBase = 100 * time.Millisecond
		e := newTestEngine(o, nil)
		stop := e.start(t)
		r := e.generate(tokenRun(0, 8), 5000)
		begin := time.Now()
		stop()
		if took := time.Since(begin); took > drainTime+200*time.Millisecond {
			t.Errorf("stopping took %s", took)
		}
		if _, _, err := result(r); !errors.Is(err, errAborted) {
			t.Errorf("request ended with %v, want %v", err, errAborted)
		}
	})
}

// TestRandomWorkloadsSettle drives an engine with an agent through random
// requests, aborts and resets, with little memory.
func TestRandomWorkloadsSettle(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		blocks := rapid.IntRange(6, 20).Draw(rt, "blocks")
		type op struct{ prefix, length, out, pause, abort int }
		ops := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) op {
			return op{
				prefix: rapid.IntRange(0, 2).Draw(t, "prefix"),
				length: rapid.IntRange(1, 14).Draw(t, "length"),
				out:    rapid.IntRange(1, 10).Draw(t, "out"),
				pause:  rapid.IntRange(0, 5).Draw(t, "pause"),
				abort:  rapid.IntRange(0, 9).Draw(t, "abort"),
			}
		}), 1, 12).Draw(rt, "ops")
		synctest.Test(t, func(t *testing.T) {
			agent := newFakeAgent(testNaming(), 64)
			e := newTestEngine(testOptions(blocks), agent)
			defer e.start(t)()
			var requests []*request
			for _, o := range ops {
				r := e.generate(tokenRun(1000*o.prefix, o.length), o.out)
				requests = append(requests, r)
				<-time.After(time.Duration(o.pause) * time.Millisecond)
				if o.abort == 0 {
					e.post(func() { e.abort(r) })
				}
				if o.abort == 1 {
					e.post(func() { e.reset() })
				}
			}
			for i, r := range requests {
				if served, out, err := result(r); err == nil && (sum(served) != ops[i].length || len(out) != ops[i].out) {
					rt.Errorf("request %d of %+v: served %+v, %d tokens", i, ops[i], served, len(out))
				}
			}
			e.checkSettled(t, agent)
			if n := e.counts.snapshot().WrongBytes + e.counts.snapshot().LoadsFailed + e.counts.snapshot().StoresFailed; n > 0 {
				rt.Errorf("wrong bytes or failures with a well-behaved agent: %+v", e.counts.snapshot())
			}
		})
	})
}
