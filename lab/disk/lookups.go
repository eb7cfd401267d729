package disk

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"golang.org/x/sync/errgroup"
)

// minLookups is how often a prefix is looked up at least.
const minLookups = 200

// Lookups are the microseconds that look-ups of a prefix of 1,000 blocks in
// host memory took, keys given, and then to give its pins back.
type Lookups struct {
	// N is how many there were.
	N int
	// P50 and P99 are of Lookup, Unpin is the median of Unpin.
	P50, P99, Unpin float64
}

// looker looks prompts up, one after the other.
type looker struct {
	pool          *fullPool
	next          int
	blocks        []blockmgr.Block
	lookup, unpin latencies
	// fromDisk counts the look-ups that are not in the figures, because something
	// had pushed a block out of host memory.
	fromDisk int
}

func newLooker(c *fullPool) *looker { return &looker{pool: c} }

// one looks the next prompt up and gives it back.
func (l *looker) one(ctx context.Context) error {
	prompt := l.next % l.pool.prompts
	l.next++
	l.blocks = appendPrompt(l.blocks[:0], uint64(prompt), 0, promptBlocks)
	start := time.Now()
	found, err := l.pool.pool.Lookup(ctx, sessionID, l.blocks)
	took := time.Since(start)
	if err != nil {
		return err
	}
	if len(found.Slots) != promptBlocks {
		return fmt.Errorf("look-up of prompt %d: %d of %d blocks", prompt, len(found.Slots), promptBlocks)
	}
	start = time.Now()
	if err := l.pool.pool.Unpin(sessionID, found.Slots); err != nil {
		return err
	}
	unpin := time.Since(start)
	for _, tier := range found.Sources {
		if tier != kv.TierHost {
			l.fromDisk++
			return nil
		}
	}
	l.lookup.add(took)
	l.unpin.add(unpin)
	return nil
}

func (l *looker) result() Lookups {
	return Lookups{N: len(l.lookup), P50: l.lookup.at(0.5), P99: l.lookup.at(0.99), Unpin: l.unpin.at(0.5)}
}

// warm brings the prompts into host memory.
func (c *fullPool) warm(ctx context.Context) error {
	if err := c.pool.BeginSession(sessionID); err != nil {
		return err
	}
	l := newLooker(c)
	for range c.prompts {
		if err := l.one(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// measureLookups looks prompts up for so long, with nothing else going on.
func (c *fullPool) measureLookups(ctx context.Context, d time.Duration) (Lookups, error) {
	l := newLooker(c)
	for start := time.Now(); time.Since(start) < d || len(l.lookup) < minLookups; {
		if err := l.one(ctx); err != nil {
			return Lookups{}, err
		}
		if l.fromDisk > 0 {
			return Lookups{}, fmt.Errorf("look-up: a block that was in host memory is not there any more")
		}
		if err := ctx.Err(); err != nil {
			return Lookups{}, err
		}
	}
	return l.result(), nil
}

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
func (c *fullPool) measurePauses(ctx context.Context, d time.Duration) (Pauses, error) {
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
func (c *fullPool) storeUntil(done context.Context) (int, error) {
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
