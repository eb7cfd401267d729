package estimate

import (
	"fmt"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// receive has a worker answer a prompt of other workers, whose first token comes after so many milliseconds.
func (b *bench) receive(id string, worker uint64, tokens int, hits index.Hits, ms int) {
	b.Booked(&Booking{ID: id, Worker: workerID(worker), Tokens: tokens, BlockSize: testBlock, Hits: hits, Untracked: true, HandedOver: true})
	b.pass(time.Duration(ms) * time.Millisecond)
	b.PrefillDone(id)
}

// handedOverPrice returns the price of a prompt that another worker has computed.
func (b *bench) handedOverPrice(worker uint64, tokens int, hits index.Hits) price.Price {
	b.t.Helper()
	in := selection(worker, tokens, hits, 0)
	in.Request.HandedOver = true
	var prices [1]price.Price
	if why, ok := b.Prices(in, prices[:]); !ok {
		b.t.Fatal(why)
	}
	return prices[0]
}

// TestAPromptThatIsHandedOverIsNotComputed: its price has what receiving it takes, which is learned, and it is no
// sample of computing.
func TestAPromptThatIsHandedOverIsNotComputed(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 0, "m")
	b.SetWorker(workerID(2), 0, "m")
	b.learn(1, 16, 1)
	computed, _ := b.price(2, 8000, index.Hits{}, 0)
	if p := b.handedOverPrice(2, 8000, index.Hits{}); p.TTFT > 50 || p.Wait != 0 || computed.TTFT < 250 {
		t.Errorf("handed over %+v, computed %+v", p, computed)
	}
	before := b.Stats().Outliers
	for i := range 8 { // 20 ms for a thousand tokens
		id := fmt.Sprint("h", i)
		b.receive(id, 2, 4000, index.Hits{}, 80)
		b.Dropped(id)
	}
	if w := b.workers[workerID(2)]; w.prefill.speed.count != 0 || b.Stats().Outliers != before {
		t.Errorf("%d samples of computing, %+v", w.prefill.speed.count, b.Stats())
	}
	for _, c := range []struct {
		hits   index.Hits
		waitMS float64
	}{{index.Hits{}, 160}, {index.Hits{kv.TierDevice: 4000 / testBlock}, 80}, {index.Hits{kv.TierHost: 4000 / testBlock}, 160}} {
		if p := b.handedOverPrice(2, 8000, c.hits); p.Wait < c.waitMS*0.95 || p.Wait > c.waitMS*1.05 {
			t.Errorf("hits %v: %+v, want a wait of %v ms", c.hits, p, c.waitMS)
		}
	}
	b.Booked(&Booking{ID: "ahead", Worker: workerID(2), Tokens: 4000, BlockSize: testBlock, HandedOver: true})
	if p := b.handedOverPrice(2, 8000, index.Hits{}); p.Wait < 230 || p.Wait > 250 {
		t.Errorf("%+v behind another prompt, want a wait of 240 ms", p)
	}
	b.Dropped("ahead")
	if w := b.workers[workerID(2)]; w.prefill.receiving != 0 || w.prefill.tokens != 0 {
		t.Errorf("%d tokens to receive and %d to compute are left", w.prefill.receiving, w.prefill.tokens)
	}
}

// TestAPrefillTellsNothingOfAnswers: the mean answer is that of requests with answers.
func TestAPrefillTellsNothingOfAnswers(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 0, "m")
	b.learn(1, 16, 1)
	for range 64 {
		b.compute("answered", 1, 1000, 1)
		for range 10 {
			b.OutputBlock("answered")
		}
		b.Dropped("answered")
	}
	mean := b.workers[workerID(1)].model.meanOutput()
	for range 64 {
		b.Booked(&Booking{ID: "prefill", Worker: workerID(1), Tokens: 1000, BlockSize: testBlock, ExpectedOutput: 1})
		b.pass(100 * time.Millisecond)
		b.PrefillDone("prefill")
		b.Dropped("prefill")
	}
	if got := b.workers[workerID(1)].model.meanOutput(); got != mean || mean < 9*testBlock {
		t.Errorf("a mean answer of %v tokens, %v before the prefills", got, mean)
	}
}

// TestABookingIsNotChanged: the caller's booking is as it was, and what the scheduler's account has of it counts once.
func TestABookingIsNotChanged(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 0, "m")
	booking := Booking{ID: "a", Worker: workerID(1), Tokens: 4000, BlockSize: testBlock, Hits: index.Hits{kv.TierDevice: 10}, HandedOver: true}
	before := booking
	b.Booked(&booking)
	if booking != before {
		t.Errorf("%+v, and was %+v", booking, before)
	}
	if got, want := b.workers[workerID(1)].prefill.accountTokens, int64(4000-10*testBlock); got != want {
		t.Errorf("%d tokens of the account, want %d", got, want)
	}
}
