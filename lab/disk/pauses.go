package disk

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

const (
	// collectEvery is how often the collector is made to run, besides when it
	// runs by itself.
	collectEvery = 20 * time.Millisecond
	// lookupEvery, storeEvery and storeBlocks are the load that goes on meanwhile: a
	// million blocks looked up a second, and 6,400 stored. Processors that are busy
	// all the time would make the collector wait for the system's scheduler.
	lookupEvery = time.Millisecond
	storeEvery  = 10 * time.Millisecond
	storeBlocks = 64
	// firstStored is the number of the first prompt that is stored meanwhile,
	// above those that are registered.
	firstStored = 1 << 32
	// minCycles is how often the collector runs at least.
	minCycles = 20
)

// Pauses are the collector's stop-the-world pauses in a process with many
// blocks, while they are looked up, and others stored.
type Pauses struct {
	// Cycles is how often the collector ran, N how often it stopped the world.
	Cycles, N uint64
	// P50, P99 and Max are upper bounds in milliseconds.
	P50, P99, Max float64
	// Lookups are those that went on meanwhile, Stored the blocks.
	Lookups Lookups
	Stored  int
}

// measurePauses uses the pool for so long while the collector runs again and
// again.
func (c *crowd) measurePauses(ctx context.Context, d time.Duration) (Pauses, error) {
	before := readCollector()
	done, stop := context.WithCancel(ctx)
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	l, stored := newLooker(c), 0
	g.Go(func() error { defer stop(); return collect(gctx, d) })
	g.Go(func() error {
		tick := time.NewTicker(lookupEvery)
		defer tick.Stop()
		for done.Err() == nil {
			if err := l.one(gctx); err != nil {
				return err
			}
			select {
			case <-tick.C:
			case <-done.Done():
			}
		}
		return nil
	})
	g.Go(func() (err error) { stored, err = c.storeUntil(done); return err })
	if err := errors.Join(g.Wait(), ctx.Err()); err != nil {
		return Pauses{}, err
	}
	after := readCollector()
	counts, n := counted(before.pauses, after.pauses)
	at := func(q float64) float64 { return 1000 * histogramQuantile(counts, after.pauses.Buckets, q) }
	return Pauses{
		Cycles: after.cycles - before.cycles, N: n, P50: at(0.5), P99: at(0.99), Max: at(1),
		Lookups: l.result(), Stored: stored,
	}, nil
}

// collect makes the collector run for so long.
func collect(ctx context.Context, d time.Duration) error {
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	start := time.Now()
	for n := 0; n < minCycles || time.Since(start) < d; n++ {
		runtime.GC()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// storeUntil stores new blocks at a steady rate until done is, and says how
// many.
func (c *crowd) storeUntil(done context.Context) (int, error) {
	tick := time.NewTicker(storeEvery)
	defer tick.Stop()
	stored := 0
	for prompt := uint64(firstStored); ; prompt++ {
		select {
		case <-tick.C:
		case <-done.Done():
			return stored, nil
		}
		granted, err := c.pool.Grant(sessionID, appendPrompt(nil, prompt, 0, storeBlocks), 0)
		if err != nil {
			return stored, err
		}
		for _, g := range granted.Grants {
			if err := c.pool.Commit(sessionID, []blockmgr.Slot{g.Slot}); err != nil {
				return stored, err
			}
			stored++
		}
		if granted.Refused == storeBlocks {
			return stored, fmt.Errorf("store: no block of %d got a slot", storeBlocks)
		}
	}
}

// collector is what the runtime says about the collector.
type collector struct {
	pauses *metrics.Float64Histogram
	cycles uint64
}

func readCollector() collector {
	s := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}, {Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(s)
	return collector{s[0].Value.Float64Histogram(), s[1].Value.Uint64()}
}
