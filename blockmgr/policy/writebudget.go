package policy

import (
	"fmt"
	"sync"
	"time"
)

// WriteBudget bounds the bytes that a disk is written in any 24 hours. It is a bucket: bytes flow in
// evenly, writes take them out, and the bucket holds what flows in within an hour or so. It begins
// empty, so that restarts never exceed the budget. Methods take the time; one before that of an earlier
// call counts as that of the earlier call. A WriteBudget is safe for concurrent use.
type WriteBudget struct {
	perDay uint64

	mu   sync.Mutex
	left float64
	// reserved are the bytes that were taken out for writes that have not ended. They and left are at
	// most a full bucket, so that a write that is not made brings nothing new in.
	reserved float64
	since    time.Time
	// hours has the written bytes by hour; hour is the number of the last one.
	hours [dayHours]uint64
	hour  int64
	stats WriteBudgetStats
}

// WriteBudgetStats are the gauges and counters of a WriteBudget.
type WriteBudgetStats struct {
	// DayBytes is the number of bytes written in the last 24 hours, to the hour, since the agent began.
	DayBytes uint64 `json:"day_bytes" metric:"last_day,gauge"`
	// PerDay is the budget, LeftBytes what may be written now, besides the writes under way.
	PerDay    uint64 `json:"per_day" metric:"per_day,gauge"`
	LeftBytes uint64 `json:"left_bytes" metric:"left,gauge"`
	// Refused counts the blocks that were in demand and not written, because others were in more
	// demand. Exhausted counts the blocks that waited for the disk and were dropped, because no bytes
	// were left.
	Refused   uint64 `json:"refused"`
	Exhausted uint64 `json:"exhausted"`
}

const (
	dayHours = 24
	// LeastWriteBudget is the least budget a day.
	LeastWriteBudget = 1 << 30
)

// NewWriteBudget returns an empty budget of perDay bytes a day. The error says that perDay is too small.
func NewWriteBudget(perDay uint64, now time.Time) (*WriteBudget, error) {
	if perDay < LeastWriteBudget {
		return nil, fmt.Errorf("write budget: %d bytes a day: want 0 (none) or at least %d", perDay, LeastWriteBudget)
	}
	return &WriteBudget{perDay: perDay, since: now, hour: now.Unix() / 3600}, nil
}

// room is the size of the bucket. What flows in within 24 hours and a full bucket are the budget.
func (b *WriteBudget) room() float64 { return float64(b.perDay) / (dayHours + 1) }

// flowLocked adds what has flowed in, and moves to the hour of now.
func (b *WriteBudget) flowLocked(now time.Time) {
	if now.After(b.since) {
		b.left = min(b.room()-b.reserved, b.left+now.Sub(b.since).Hours()*b.room())
		b.since = now
	}
	for hour := now.Unix() / 3600; b.hour < hour; {
		if hour-b.hour > dayHours {
			b.hour = hour - dayHours
		}
		b.hour++
		b.hours[b.hour%dayHours] = 0
	}
}

// Worth reports whether a block of a count should be written now. A full bucket takes every block. The
// emptier the bucket, the larger the count must be, so that the bytes go to the blocks in most demand.
func (b *WriteBudget) Worth(count uint64, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flowLocked(now)
	worth := 2*float64(count)*b.left > b.room()
	if !worth {
		b.stats.Refused++
	}
	return worth
}

// Most returns the most bytes that Reserve ever grants at once.
func (b *WriteBudget) Most() uint64 { return uint64(b.room()) }

// Reserve takes the bytes of a block out of the bucket before the write, and reports whether there were
// enough. Settle follows each Reserve that returns true.
func (b *WriteBudget) Reserve(bytes uint64, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flowLocked(now)
	if b.left < float64(bytes) {
		b.stats.Exhausted++
		return false
	}
	b.left -= float64(bytes)
	b.reserved += float64(bytes)
	return true
}

// Settle ends a reservation after the write. Bytes that were not written go back into the bucket.
func (b *WriteBudget) Settle(bytes uint64, written bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flowLocked(now)
	b.reserved -= float64(bytes)
	if written {
		b.hours[b.hour%dayHours] += bytes
	} else {
		b.left += float64(bytes)
	}
}

// Wrote takes bytes that were written whether the bucket had them or not, such as records of slots.
func (b *WriteBudget) Wrote(bytes uint64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flowLocked(now)
	b.left -= float64(bytes)
	b.hours[b.hour%dayHours] += bytes
}

// Stats returns the gauges and counters.
func (b *WriteBudget) Stats(now time.Time) WriteBudgetStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flowLocked(now)
	s := b.stats
	s.PerDay, s.LeftBytes = b.perDay, uint64(max(0, b.left))
	for _, bytes := range b.hours {
		s.DayBytes += bytes
	}
	return s
}
