package policy

import (
	"cmp"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// FrequencyOptions say which blocks a FrequencyFilter lets pass.
type FrequencyOptions struct {
	// Min is the least count of a block that passes; 0 means 2, the second request for the
	// block.
	Min uint32
	// Decay is the time in which every count loses 1; 0 means 10 minutes.
	Decay time.Duration
	// MaxEntries is the number of blocks that are counted, up to 2^30; 0 means
	// 1,000,000, or more where Expect says so.
	MaxEntries int
	// Budget refuses more blocks the less may be written. Nil refuses none.
	Budget *WriteBudget `json:"-"`
	// Now is the clock of simulations; nil means time.Now.
	Now func() time.Time `json:"-"`
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

// withDefaults returns o with the defaults of its zero fields.
func (o FrequencyOptions) withDefaults() FrequencyOptions {
	o.Min = cmp.Or(o.Min, 2)
	o.Decay = cmp.Or(o.Decay, 10*time.Minute)
	o.MaxEntries = cmp.Or(o.MaxEntries, leastEntries)
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// FrequencyStats are the counters of a FrequencyFilter.
type FrequencyStats struct {
	// Entries is the number of blocks that have a count now.
	Entries int `json:"entries"`
	// Pruned counts the blocks that lost their count because there were more than
	// MaxEntries. Blocks whose count has decayed are not included.
	Pruned uint64 `json:"pruned"`
	// Accepted and Rejected are the answers of ShouldOffload.
	Accepted uint64 `json:"accepted"`
	Rejected uint64 `json:"rejected"`
}

// FrequencyFilter passes the blocks to the next tier that were asked for at least Min times,
// so that blocks that are used once do not wear the disk. It is safe for concurrent use and has
// no goroutine: the calls apply the decay of the counts.
//
// To lower each count would take a walk over all blocks. Instead the filter counts the
// decrements since it was made, and each block has a level: its count plus the decrements at
// the time of the count. The count now is the level minus the decrements now. A block whose
// level the decrements have reached is forgotten, and its entry is cleared later.
type FrequencyFilter struct {
	// sized: the caller has set MaxEntries.
	sized bool

	mu sync.Mutex
	// options does not change, except that Expect changes options.MaxEntries.
	options FrequencyOptions
	// index has the position of each block in entries. Neither holds pointers.
	index   map[kv.SequenceHash]uint32
	entries chunked[tally]
	// filled is the number of entries, including forgotten blocks.
	filled uint32
	// next is the entry that clearSomeLocked looks at next.
	next uint32
	// decrements is the sum that every count has lost since the filter was made.
	decrements uint64
	// lowered is the time of the last decrement.
	lowered time.Time
	// known is the number of blocks with a count, atLevel the number by level.
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
	// countLimit bounds the counts.
	countLimit = math.MaxInt64
	// clearedPerInsertion is the number of entries that an insertion looks at, to clear the
	// entries of forgotten blocks. There are then at most 1.5 times MaxEntries entries.
	clearedPerInsertion = 4
)

// NewFrequencyFilter returns a filter that knows no block. The error names the option
// that is out of range.
func NewFrequencyFilter(o FrequencyOptions) (*FrequencyFilter, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	sized := o.MaxEntries != 0
	o = o.withDefaults()
	return &FrequencyFilter{
		sized:   sized,
		options: o,
		index:   make(map[kv.SequenceHash]uint32),
		atLevel: make(map[uint64]uint32),
		lowered: o.Now(),
	}, nil
}

// Expect says how many blocks the tiers can hold. Unless MaxEntries is set, the filter then
// counts twice as many, so that it still knows an evicted block that comes back. A number below
// that of an earlier call changes nothing.
func (f *FrequencyFilter) Expect(blocks uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.sized {
		f.options.MaxEntries = max(f.options.MaxEntries, int(min(2*blocks, maxFrequencyEntries)))
	}
}

// ShouldOffload counts a store or a hit of block h, and reports whether the block should go to
// the next tier.
func (f *FrequencyFilter) ShouldOffload(h kv.SequenceHash) bool {
	now := f.options.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	count, budget := f.countLocked(h, now), f.options.Budget
	if count < uint64(f.options.Min) || budget != nil && !budget.Worth(count, now) {
		f.stats.Rejected++
		return false
	}
	f.stats.Accepted++
	return true
}

// Stats returns the counters now.
func (f *FrequencyFilter) Stats() FrequencyStats {
	now := f.options.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decayLocked(now)
	stats := f.stats
	stats.Entries = f.known
	return stats
}

// countLocked counts a use of block h at time now, and returns the new count: 1 for an unknown
// block, otherwise twice the count before. If h is one block too many, pruneLocked lowers all
// counts, that of h too; the result does not show that.
func (f *FrequencyFilter) countLocked(h kv.SequenceHash, now time.Time) uint64 {
	f.decayLocked(now)
	i, ok := f.index[h]
	if !ok {
		i = f.filled
		f.entries.growTo(i)
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

// leaveLevelLocked counts one block less at a level.
func (f *FrequencyFilter) leaveLevelLocked(level uint64) {
	if n := f.atLevel[level]; n > 1 {
		f.atLevel[level] = n - 1
	} else {
		delete(f.atLevel, level)
	}
}

// decayLocked lowers the counts by 1 for each decay interval since the last decrement.
func (f *FrequencyFilter) decayLocked(now time.Time) {
	if n := now.Sub(f.lowered) / f.options.Decay; n > 0 {
		f.lowered = f.lowered.Add(n * f.options.Decay)
		f.lowerLocked(uint64(n))
	}
}

// pruneLocked lowers the counts until at most MaxEntries blocks are known. It restarts the decay
// interval.
func (f *FrequencyFilter) pruneLocked(now time.Time) {
	before := f.known
	for f.known > f.options.MaxEntries {
		f.lowerLocked(1)
		f.lowered = now
	}
	f.stats.Pruned += uint64(before - f.known)
}

// lowerLocked subtracts n from every count, and forgets the blocks whose count becomes 0.
func (f *FrequencyFilter) lowerLocked(n uint64) {
	f.decrements += n
	if n == 1 { // the usual case: the only level that the decrements have newly reached
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

// clearSomeLocked looks at the next few entries and replaces the entry of a forgotten block by the
// last entry. Each insertion calls it, which bounds the entries of forgotten blocks.
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
		if f.next < f.filled { // otherwise it was the last entry
			*t = *f.entries.at(f.filled)
			f.index[t.hash] = f.next
		}
	}
}
