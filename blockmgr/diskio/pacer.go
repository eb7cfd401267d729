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
