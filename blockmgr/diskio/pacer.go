package diskio

import (
	"sync"
	"time"
)

// Pacer limits the rate of work of several goroutines. The zero value is ready. Pacer is safe
// for concurrent use.
type Pacer struct {
	mu   sync.Mutex
	next time.Time
}

// Take books work that takes cost at the allowed rate. It returns how long the caller must wait
// before it calls Take again.
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

// BusyTime adds up the time during which at least one operation runs. The bytes moved, divided
// by the busy time, are the device's bandwidth. The zero value is ready. The caller serializes
// the calls.
type BusyTime struct {
	running int
	since   time.Time // when the number of running operations became 1
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

// Micros returns the busy time until now in µs, running operations included.
func (b *BusyTime) Micros(now time.Time) uint64 {
	sum := b.sum
	if b.running > 0 {
		sum += now.Sub(b.since)
	}
	return uint64(sum.Microseconds())
}
