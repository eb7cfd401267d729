package disk

import (
	"context"
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/internal/kv"
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
	crowd         *crowd
	next          int
	blocks        []blockmgr.Block
	lookup, unpin latencies
	// fromDisk counts the look-ups that are not in the figures, because something
	// had pushed a block out of host memory.
	fromDisk int
}

func newLooker(c *crowd) *looker { return &looker{crowd: c} }

// one looks the next prompt up and gives it back.
func (l *looker) one(ctx context.Context) error {
	prompt := l.next % l.crowd.prompts
	l.next++
	l.blocks = appendPrompt(l.blocks[:0], uint64(prompt), 0, promptBlocks)
	start := time.Now()
	found, err := l.crowd.pool.Lookup(ctx, sessionID, l.blocks)
	took := time.Since(start)
	if err != nil {
		return err
	}
	if len(found.Slots) != promptBlocks {
		return fmt.Errorf("look-up of prompt %d: %d of %d blocks", prompt, len(found.Slots), promptBlocks)
	}
	start = time.Now()
	if err := l.crowd.pool.Unpin(sessionID, found.Slots); err != nil {
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
func (c *crowd) warm(ctx context.Context) error {
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
func (c *crowd) measureLookups(ctx context.Context, d time.Duration) (Lookups, error) {
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
