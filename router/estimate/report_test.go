package estimate

import (
	"math"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule/price"
)

// TestOneReportWithoutSenseIsOutvoted: what no machine can do is not taken, and what a
// machine might do, with as many bytes as that has, does not weigh more than the others.
func TestOneReportWithoutSenseIsOutvoted(t *testing.T) {
	for name, c := range map[string]struct {
		bytes, micros uint64
		refused       uint64
	}{
		"a counter that underflowed":  {math.MaxUint64, 1, 2},
		"one that took a second":      {math.MaxUint64, 1e6, 2},
		"a time that underflowed":     {1 << 20, math.MaxUint64, 2},
		"as much as memory could do":  {9e12, 1e6, 0},
		"the same in a microsecond":   {9e6, 1, 0},
		"slower than any, for long":   {1 << 20, 59e6, 0},
		"next to nothing in a second": {1, 1e6, 0},
	} {
		for good := 3; good <= 21; good += 3 {
			b := newBench(t, Options{})
			b.SetWorker(workerID(1), 9, "m")
			b.learn(1, 16, 1)
			b.reportCopies(1, good, 10)
			b.reportDisk(9, good, 1000, 0)
			b.Report(&kvevent.LoadReport{Owner: kv.WorkerOwner(workerID(1)), Worker: kvevent.WorkerLoad{CopyBytes: c.bytes, CopyMicros: c.micros}})
			b.Report(&kvevent.LoadReport{Owner: kv.PoolOwner(9), Pool: kvevent.PoolLoad{BlockBytes: 1 << 20, DiskReadBytes: c.bytes, DiskReadMicros: c.micros}})
			if s := b.Stats(); s.Implausible != c.refused {
				t.Errorf("%s: %+v", name, s)
			}
			for range 5 {
				b.want(30*0.1+20+(1000-30*testBlock)*0.1+5, 1, 1000, index.Hits{kv.TierHost: 10, kv.TierDisk: 20}, 0)
				b.reportCopies(1, 1, 10)
				b.reportDisk(9, 1, 1000, 0)
			}
		}
	}
}

// TestAReportedChangeIsBelieved: the bounds that keep one report from deciding do not
// keep a way that has become slower from being seen.
func TestAReportedChangeIsBelieved(t *testing.T) {
	b := newBench(t, Options{})
	b.SetWorker(workerID(1), 9, "m")
	b.learn(1, 16, 1)
	b.reportCopies(1, 16, 1<<12)
	b.reportDisk(9, 16, 10_000, 0)
	b.reportDisk(9, 14, 100, 0)
	b.want(105, 1, 1000, index.Hits{kv.TierDisk: 10}, 0)
}

// TestLyingReportsMoveNoPrice: two of five reports with a hundred times the requests leave a price as it was,
// and a third one is believed.
func TestLyingReportsMoveNoPrice(t *testing.T) {
	for _, honest := range []kvevent.WorkerLoad{{}, {Waiting: 1, Running: 9}} {
		b := newBench(t, Options{})
		b.SetWorker(workerID(1), 0, "m")
		b.learn(1, 16, 1)
		report := func(l kvevent.WorkerLoad) price.Price {
			b.pass(time.Second)
			b.Report(&kvevent.LoadReport{Owner: kv.WorkerOwner(workerID(1)), Worker: l})
			p, why := b.price(1, 1000, index.Hits{}, 0)
			if why != "" {
				t.Fatal(why)
			}
			return p
		}
		var before price.Price
		for range 5 {
			before = report(honest)
		}
		lie := kvevent.WorkerLoad{Waiting: 100, Running: 900}
		for n := range 2 {
			if p := report(lie); p.Total(price.Balanced) > before.Total(price.Balanced)*1.01 {
				t.Errorf("honest reports of %+v: a price of %+v after %d wrong ones, %+v before", honest, p, n+1, before)
			}
		}
		if p := report(lie); p.Wait < 10*before.Wait || p.Imposed < 10*before.Imposed {
			t.Errorf("honest reports of %+v: a price of %+v after three of more requests, %+v before", honest, p, before)
		}
	}
}

// TestLaterReportsDecide: a wrong first report counts until the next one, and a queue that has grown counts with all
// its reports once a third one confirms it. So does its end.
func TestLaterReportsDecide(t *testing.T) {
	for name, c := range map[string]struct{ reports, least, most []float64 }{
		"a wrong first report": {[]float64{400, 0, 0}, []float64{400, 0, 0}, []float64{400, 0, 0}},
		"two wrong ones":       {[]float64{2, 2, 2, 400, 400, 2}, []float64{2, 2, 2, 2, 2, 2}, []float64{2, 2, 2, 2, 2, 2}},
		"a queue that grows":   {[]float64{0, 0, 100, 100, 100, 100}, []float64{0, 0, 0, 0, 55, 65}, []float64{0, 0, 0, 0, 60, 70}},
		"a queue that ends":    {[]float64{100, 100, 100, 0, 0, 0}, []float64{100, 100, 100, 75, 56, 0}, []float64{100, 100, 100, 75, 57, 25}},
	} {
		var e elsewhere
		for i, r := range c.reports {
			if e.add(r); e.mean < c.least[i]-1e-9 || e.mean > c.most[i]+1e-9 {
				t.Errorf("%s: a mean of %v after report %d, want %v to %v", name, e.mean, i+1, c.least[i], c.most[i])
			}
		}
	}
}
