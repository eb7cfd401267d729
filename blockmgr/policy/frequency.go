package policy

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// FrequencyOptions say which blocks a FrequencyFilter lets pass.
type FrequencyOptions struct {
	// Min is the count from which on a block passes; 0 means 2: the second time
	// that it is asked for.
	Min uint32
	// Decay is the time in which every count loses 1; 0 means 10 minutes.
	Decay time.Duration
	// MaxEntries is the number of blocks that are counted, up to 2^30; 0 means
	// 1,000,000, or more where Expect says so.
	MaxEntries int
}

const (
	// leastEntries is the least default of FrequencyOptions.MaxEntries.
	leastEntries        = 1_000_000
	maxFrequencyEntries = 1 << 30
)

// Validate says which field is out of range.
func (o *FrequencyOptions) Validate() error {
	if o.Decay < 0 {
		return fmt.Errorf("frequency filter: decay: got %v, want 0 (the default) or more", o.Decay)
	}
	if o.MaxEntries < 0 || o.MaxEntries > maxFrequencyEntries {
		return fmt.Errorf("frequency filter: max entries: got %d, want 0 (the default) to %d", o.MaxEntries, maxFrequencyEntries)
	}
	return nil
}

func (o FrequencyOptions) withDefaults() FrequencyOptions {
	if o.Min == 0 {
		o.Min = 2
	}
	if o.Decay == 0 {
		o.Decay = 10 * time.Minute
	}
	if o.MaxEntries == 0 {
		o.MaxEntries = leastEntries
	}
	return o
}

// FrequencyStats are the counters of a FrequencyFilter.
type FrequencyStats struct {
	// Entries is the number of blocks that have a count now.
	Entries int
	// Pruned is how many blocks lost their count because there were more than
	// MaxEntries; those that time made forget are not in it.
	Pruned uint64
	// Accepted and Rejected are the answers of ShouldOffload.
	Accepted, Rejected uint64
}

// FrequencyFilter lets those blocks pass to the next tier that are wanted again,
// so that what is computed once and never asked for does not wear the disk. It is
// safe for concurrent use and has no goroutine: what time has taken from the
// counts is taken when somebody asks.
//
// Every count that loses 1 would be a walk over all blocks. Instead a block has a
// level, its count plus the decrements there have been when it got it; the count
// is what the level is above today's decrements, and a decrement is one addition.
// A block whose level has been reached is forgotten, and its entry is cleared
// away later.
type FrequencyFilter struct {
	// sized: MaxEntries was given.
	sized bool

	mu sync.Mutex
	// options.MaxEntries changes with Expect, nothing else does.
	options FrequencyOptions
	// index is where in entries a block is. Neither it nor entries hold pointers.
	index   map[kv.SequenceHash]uint32
	entries chunked[tally]
	// filled is the number of entries, with those of forgotten blocks.
	filled uint32
	// next is the entry that clearSomeLocked looks at next.
	next uint32
	// decrements is what every count has lost since the filter was made.
	decrements uint64
	// lowered is when the counts last lost 1.
	lowered time.Time
	// known is the number of blocks that have a count, atLevel that by level.
	known   int
	atLevel map[uint64]uint32
	stats   FrequencyStats
}

// tally is the count of one block.
type tally struct {
	hash  kv.SequenceHash
	level uint64
}

const (
	// countLimit is where counts stop doubling.
	countLimit = math.MaxInt64
	// clearedPerInsertion is how many entries an insertion looks at to clear away those of
	// forgotten blocks. All entries are looked at within as many insertions as a third of
	// them, so that they are at most MaxEntries plus a third of themselves.
	clearedPerInsertion = 4
)

// NewFrequencyFilter is a filter that knows no block. The error names the option
// that is out of range.
func NewFrequencyFilter(o FrequencyOptions) (*FrequencyFilter, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &FrequencyFilter{
		sized:   o.MaxEntries != 0,
		options: o.withDefaults(),
		index:   make(map[kv.SequenceHash]uint32),
		atLevel: make(map[uint64]uint32),
		lowered: time.Now(),
	}, nil
}

// Expect says how many blocks the tiers can hold. The filter then counts twice as
// many, so that a block that was evicted once is still known when it comes back,
// unless MaxEntries was given. A smaller number changes nothing.
func (f *FrequencyFilter) Expect(blocks uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.sized {
		f.options.MaxEntries = max(f.options.MaxEntries, int(min(2*blocks, maxFrequencyEntries)))
	}
}

// ShouldOffload counts that block h was stored, or that a lookup found it, and
// reports whether it is worth a place in the next tier.
func (f *FrequencyFilter) ShouldOffload(h kv.SequenceHash) bool {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.countLocked(h, now) < uint64(f.options.Min) {
		f.stats.Rejected++
		return false
	}
	f.stats.Accepted++
	return true
}

// Stats are the counters now.
func (f *FrequencyFilter) Stats() FrequencyStats {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decayLocked(now)
	stats := f.stats
	stats.Entries = f.known
	return stats
}

// countLocked gives h the count 1, or twice the one it has, and returns it. The
// count may be gone again by then, if it was one block too many.
func (f *FrequencyFilter) countLocked(h kv.SequenceHash, now time.Time) uint64 {
	f.decayLocked(now)
	i, ok := f.index[h]
	if !ok {
		i = f.filled
		f.entries.reach(i)
		*f.entries.at(i) = tally{hash: h}
		f.index[h] = i
		f.filled++
	}
	t := f.entries.at(i)
	if t.level > f.decrements {
		count := min(2*(t.level-f.decrements), countLimit)
		f.leaveLevelLocked(t.level)
		t.level = f.decrements + count
		f.atLevel[t.level]++
		return count
	}
	t.level = f.decrements + 1
	f.atLevel[t.level]++
	f.known++
	f.clearSomeLocked()
	f.pruneLocked(now)
	return 1
}

func (f *FrequencyFilter) leaveLevelLocked(level uint64) {
	if n := f.atLevel[level]; n > 1 {
		f.atLevel[level] = n - 1
	} else {
		delete(f.atLevel, level)
	}
}

// decayLocked takes from the counts what time has taken since it was last done.
func (f *FrequencyFilter) decayLocked(now time.Time) {
	if n := now.Sub(f.lowered) / f.options.Decay; n > 0 {
		f.lowered = f.lowered.Add(n * f.options.Decay)
		f.lowerLocked(uint64(n))
	}
}

// pruneLocked lowers the counts until no more blocks are known than may be. The
// next decay then is a whole interval away.
func (f *FrequencyFilter) pruneLocked(now time.Time) {
	before := f.known
	for f.known > f.options.MaxEntries {
		f.lowerLocked(1)
		f.lowered = now
	}
	f.stats.Pruned += uint64(before - f.known)
}

// lowerLocked takes n from every count. Blocks that have none left are forgotten.
func (f *FrequencyFilter) lowerLocked(n uint64) {
	f.decrements += n
	if n == 1 {
		f.forgetLocked(f.decrements)
		return
	}
	for level := range f.atLevel {
		if level <= f.decrements {
			f.forgetLocked(level)
		}
	}
}

// forgetLocked forgets the blocks at one level.
func (f *FrequencyFilter) forgetLocked(level uint64) {
	f.known -= int(f.atLevel[level])
	delete(f.atLevel, level)
}

// clearSomeLocked looks at the next few entries and fills those of forgotten
// blocks with the last one.
func (f *FrequencyFilter) clearSomeLocked() {
	for range clearedPerInsertion {
		if f.next >= f.filled {
			f.next = 0
		}
		t := f.entries.at(f.next)
		if t.level > f.decrements {
			f.next++
			continue
		}
		delete(f.index, t.hash)
		f.filled--
		if f.next < f.filled {
			*t = *f.entries.at(f.filled)
			f.index[t.hash] = f.next
		}
	}
}
