package backoff

import (
	"sync"
	"time"
)

// BreakerFailures is the number of failures in a row after which a Breaker admits one question per
// BreakerPause.
const (
	BreakerFailures = 5
	BreakerPause    = time.Second
)

// Breaker is a circuit breaker for questions to a service. After five failures in a row it allows one
// question per second, until a question succeeds. The zero value is ready. It is safe for concurrent use.
type Breaker struct {
	mu          sync.Mutex
	failures    int
	pausedUntil time.Time
}

// Allows reports whether a question may be sent now. After five failures it admits one question per second,
// to find out whether the service is back.
func (b *Breaker) Allows(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < BreakerFailures {
		return true
	}
	if now.Before(b.pausedUntil) {
		return false
	}
	// Allow this question as a probe.
	b.pausedUntil = now.Add(BreakerPause)
	return true
}

// Record records whether a question succeeded. Failures in a row begin a pause: see Allows.
func (b *Breaker) Record(succeeded bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if succeeded {
		b.failures = 0
		return
	}
	b.failures++
	b.pausedUntil = now.Add(BreakerPause)
}
