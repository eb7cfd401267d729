package diskio

import (
	"sync"
	"time"
)

// Pacer spreads work that several goroutines do over time. The zero value begins
// now.
type Pacer struct {
	mu   sync.Mutex
	next time.Time
}

// Take books work that takes cost of everybody's time, and returns how long the
// caller must wait after it before it books more.
func (p *Pacer) Take(cost time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(cost)
	return p.next.Sub(now)
}

// BusyTime adds up the time during which at least one of several overlapping
// operations is under way. What they moved divided by it is how fast the device is,
// which the clock on the wall does not tell: that also runs while there is nothing to
// do. The zero value is ready; the caller serializes.
type BusyTime struct {
	running int
	since   time.Time // when the first of those that run began
	sum     time.Duration
}

// Begin counts an operation that begins now.
func (b *BusyTime) Begin(now time.Time) {
	if b.running == 0 {
		b.since = now
	}
	b.running++
}

// End ends an operation that Begin counted.
func (b *BusyTime) End(now time.Time) {
	if b.running--; b.running == 0 {
		b.sum += now.Sub(b.since)
	}
}

// Micros is the whole time in µs until now, that of what still runs included.
func (b *BusyTime) Micros(now time.Time) uint64 {
	sum := b.sum
	if b.running > 0 {
		sum += now.Sub(b.since)
	}
	return uint64(sum.Microseconds())
}
