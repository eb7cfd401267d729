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
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/lab/measure"
)

// minLookups is the least number of lookups.
const minLookups = 200

// Lookups has the times of looking up a prefix of 1,000 blocks in host memory, and of
// releasing its pins, in microseconds.
type Lookups struct {
	// N is the number of lookups.
	N int
	// P50 and P99 are quantiles of Lookup, Unpin is the median of Unpin.
	P50, P99, Unpin float64
}

// looker looks up prompts, one after the other.
type looker struct {
	pool          *fullPool
	next          int
	blocks        []blockmgr.Block
	lookup, unpin latencies
	// fromDisk counts lookups without a figure, because a block had been evicted from
	// host memory.
	fromDisk int
}

func newLooker(c *fullPool) *looker { return &looker{pool: c} }

// one looks up the next prompt, unpins its blocks, and records both times. A prompt with a block
// from disk only counts in l.fromDisk, because its time is the disk's.
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

// warm looks up every prompt once, which brings its blocks from disk into host memory.
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

// measureLookups returns the times of look-ups in host memory without other load, measured for d
// at least.
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
	// collectEvery is the time between two forced collections.
	collectEvery = 20 * time.Millisecond
	// lookupEvery, storeEvery and storeBlocks are the load meanwhile: a million blocks
	// looked up a second, and 6,400 stored. On busy processors the collector would wait
	// for the system's scheduler.
	lookupEvery = time.Millisecond
	storeEvery  = 10 * time.Millisecond
	storeBlocks = 64
	// firstStored is the number of the first stored prompt, above the registered ones.
	firstStored = 1 << 32
	// minCycles is the least number of collections.
	minCycles = 20
)

// Pauses has the stop-the-world pauses of a process with many blocks under lookups and
// stores.
type Pauses struct {
	// Cycles is the number of collections, N the number of pauses.
	Cycles, N uint64
	// P50, P99 and Max are upper bounds in milliseconds.
	P50, P99, Max float64
	// Lookups are the lookups under that load, Stored is the number of stored blocks.
	Lookups Lookups
	Stored  int
}

// measurePauses returns the pauses of the garbage collector, and the times of look-ups during
// collections. For d it forces collections while it looks up and stores.
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
	pauses := measure.Between(before.pauses, after.pauses)
	at := func(q float64) float64 { return 1000 * pauses.Quantile(q) }
	return Pauses{
		Cycles: after.cycles - before.cycles, N: pauses.N, P50: at(0.5), P99: at(0.99), Max: at(1),
		Lookups: l.result(), Stored: stored,
	}, nil
}

// collect forces a garbage collection every collectEvery for d, and at least minCycles times.
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

// storeUntil stores new blocks at a steady rate until done ends, and returns their
// number.
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

// collector is the runtime's account of the collector.
type collector struct {
	pauses *metrics.Float64Histogram
	cycles uint64
}

func readCollector() collector {
	s := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}, {Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(s)
	return collector{s[0].Value.Float64Histogram(), s[1].Value.Uint64()}
}
