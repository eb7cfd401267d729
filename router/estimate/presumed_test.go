package estimate

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/router/index"
)

// TestALostFirstTokenIsPresumed: a request that a later one has passed is no work ahead for long, a long prompt is for
// as long as it takes, and what is presumed is no sample.
func TestALostFirstTokenIsPresumed(t *testing.T) {
	for name, c := range map[string]struct {
		tokens   int
		after    time.Duration
		presumed uint64
	}{
		"soon after the later one":        {1000, 100 * time.Millisecond, 0},
		"long after the later one":        {1000, 300 * time.Millisecond, 1},
		"a long prompt":                   {10_000, 300 * time.Millisecond, 0},
		"a long prompt that is over, too": {10_000, 1100 * time.Millisecond, 1},
	} {
		b := newBench(t, Options{})
		b.SetWorker(workerID(1), 0, "m")
		b.learn(1, 16, 1)
		idle, _ := b.price(1, 1000, index.Hits{}, 0)
		b.book("lost", 1, c.tokens)
		b.compute("later", 1, 1000, 1)
		b.pass(c.after)
		samples := b.Stats().Samples
		b.book("next", 1, 1000)
		if s := b.Stats(); s.Presumed != c.presumed || s.Samples != samples {
			t.Errorf("%s: %+v, want %d presumed", name, s, c.presumed)
		}
		b.Dropped("next")
		b.Dropped("later")
		if p, _ := b.price(1, 1000, index.Hits{}, 0); c.presumed == 1 && p.Wait > idle.Wait+20 {
			t.Errorf("%s: a wait of %v ms, of an idle worker %v", name, p.Wait, idle.Wait)
		}
		b.PrefillDone("lost") // the message comes after all
		if s := b.Stats(); c.presumed == 1 && s.Samples != samples {
			t.Errorf("%s: %+v: a late first token is a sample", name, s)
		}
		b.Dropped("lost")
		if w := b.workers[workerID(1)]; w.prefill.accountTokens != 0 || w.prefill.tokens != 0 {
			t.Errorf("%s: %d and %d tokens are left", name, w.prefill.accountTokens, w.prefill.tokens)
		}
	}
}

// TestABlockTellsOfTheFirstToken: a request with a block of its answer is no prompt ahead, while the scheduler's
// account still counts its prompt.
func TestABlockTellsOfTheFirstToken(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 0, "m")
	b.learn(1, 16, 1)
	b.book("a", 1, 1000)
	waits, _ := b.price(1, 1000, index.Hits{}, 0)
	b.OutputBlock("a")
	p, _ := b.price(1, 1000, index.Hits{}, 0)
	if s := b.Stats(); p.Wait != 0 || waits.Wait < 50 || s.Presumed != 1 {
		t.Errorf("a wait of %v ms, %v before, %+v", p.Wait, waits.Wait, s)
	}
}
