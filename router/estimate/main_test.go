package estimate

import (
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

const testBlock = 16 // tokens

// bench is an Estimator with a clock of its own.
type bench struct {
	*Estimator
	t   *testing.T
	now time.Time
}

func newBench(t *testing.T, o Options) *bench {
	t.Helper()
	b := &bench{t: t, now: time.Unix(1000, 0)}
	o.Now = func() time.Time { return b.now }
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	b.Estimator = e
	return b
}

func (b *bench) pass(d time.Duration) { b.now = b.now.Add(d) }

func workerID(id uint64) kv.Worker { return kv.Worker{ID: kv.WorkerID(id)} }

// book sends a request whose blocks are nowhere.
func (b *bench) book(id string, worker uint64, tokens int) {
	b.Booked(&Booking{ID: id, Worker: workerID(worker), Tokens: tokens, BlockSize: testBlock})
}

// engine is what an engine's work takes in the tests: 5 ms for a prompt and 0.1 ms for a token at speed
// 1; a step 10 ms, and 0.2 ms for each running request.
const (
	perPrompt, perToken = 0.005, 0.0001
	perStep, perRunning = 0.01, 0.0002
)

// compute has a worker compute a prompt alone, at a speed.
func (b *bench) compute(id string, worker uint64, tokens int, speed float64) {
	b.book(id, worker, tokens)
	b.pass(time.Duration((perPrompt + perToken*float64(tokens)) / speed * float64(time.Second)))
	b.PrefillDone(id)
}

// learn has a worker compute n prompts of different lengths, which end at once.
func (b *bench) learn(worker uint64, n int, speed float64) {
	for i := range n {
		b.compute("learnt", worker, []int{300, 3000, 800, 1800}[i%4], speed)
		b.Dropped("learnt")
		b.pass(100 * time.Millisecond) // idle, which is nobody's fault
	}
}

// serve has a worker compute n prompts of 1,000 tokens, alone and one after the other,
// at a rate.
func (b *bench) serve(worker uint64, n int, perSecond float64) {
	for range n {
		b.book("served", worker, 1000)
		b.pass(time.Duration(1000 / perSecond * float64(time.Second)))
		b.PrefillDone("served")
		b.Dropped("served")
		b.pass(time.Minute / 10) // idle, which is nobody's fault
	}
}

// reportCopies says n times that a worker copied megabytes in a millisecond each.
func (b *bench) reportCopies(worker uint64, n int, megabytes uint64) {
	for range n {
		b.Report(&kvevent.LoadReport{Owner: kv.WorkerOwner(workerID(worker)), Worker: kvevent.WorkerLoad{CopyBytes: megabytes << 20, CopyMicros: 1000}})
	}
}

// reportDisk says n times that a pool of 1 MiB blocks read megabytes in a second, and
// how many blocks wait.
func (b *bench) reportDisk(pool uint64, n int, megabytes, queue uint64) {
	for range n {
		b.Report(&kvevent.LoadReport{Owner: kv.PoolOwner(pool), Pool: kvevent.PoolLoad{
			BlockBytes: 1 << 20, DiskReadBytes: megabytes << 20, DiskReadMicros: 1e6, ReadQueue: queue,
		}})
	}
}

// members are workers 0..n-1, each with place and id the same.
func members(n int) *index.Members {
	m := &index.Members{List: make([]index.Member, n)}
	for i := range m.List {
		m.List[i].Worker = workerID(uint64(i))
	}
	return m
}

// few are the workers that tests ask for.
var few = members(10)

// selection asks for one worker of few that has hits, and has ahead tokens on the
// account.
func selection(worker uint64, tokens int, hits index.Hits, ahead int64) *schedule.Selection {
	loads := &load.Columns{PrefillTokens: make([]int64, len(few.List)), Requests: make([]int32, len(few.List)), ActiveBlocks: make([]int32, len(few.List))}
	loads.PrefillTokens[worker] = ahead
	c := schedule.DefaultConfig()
	return &schedule.Selection{
		Request: &schedule.Request{Tokens: tokens, BlockSize: testBlock, Hits: []index.Hit{{Member: int32(worker), Hits: hits}}},
		Config:  &c, Members: few, Candidates: []int32{int32(worker)}, Loads: loads,
	}
}

// price is the price of a prompt of which a worker has hits, ahead of which are as
// many tokens that the estimator does not follow.
func (b *bench) price(worker uint64, tokens int, hits index.Hits, ahead int64) (price.Price, string) {
	b.t.Helper()
	if w := b.workers[workerID(worker)]; w != nil {
		ahead += w.prefill.accountTokens
	}
	var prices [1]price.Price
	why, ok := b.Prices(selection(worker, tokens, hits, ahead), prices[:])
	if ok != (why == "") {
		b.t.Errorf("ok %v, but why is %q", ok, why)
	}
	return prices[0], why
}

// ask is the time to the first token of price, in ms.
func (b *bench) ask(worker uint64, tokens int, hits index.Hits, ahead int64) (float64, string) {
	b.t.Helper()
	p, why := b.price(worker, tokens, hits, ahead)
	return p.TTFT, why
}

// want checks the time to a first token in ms, to a twentieth of it: a ridge regression is not exact.
func (b *bench) want(ms float64, worker uint64, tokens int, hits index.Hits, ahead int64) {
	b.t.Helper()
	got, why := b.ask(worker, tokens, hits, ahead)
	if why != "" || got < ms*0.95 || got > ms*1.05 {
		b.t.Errorf("%v ms, %q; want %v", got, why, ms)
	}
}

// wantMissing checks that there is no estimate, and why.
func (b *bench) wantMissing(why string, worker uint64, hits index.Hits) {
	b.t.Helper()
	if ms, got := b.ask(worker, 1000, hits, 0); got != why {
		b.t.Errorf("%v ms, %q; want %q", ms, got, why)
	}
}
