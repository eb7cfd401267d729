package workers

import (
	"time"

	"github.com/blockyard-ai/blockyard/internal/backoff"
)

const (
	// maxSlowProbes is how many probes in a row may fail without proof that the server is gone.
	maxSlowProbes = 3
	// maxFailedRequests is how many requests in a row may fail before the server gets none.
	maxFailedRequests = 5
	// firstOpen and lastOpen bound how long a server gets no requests after failures. The
	// time doubles while requests go on failing.
	firstOpen, lastOpen = time.Second, 30 * time.Second
)

// health decides from probes and requests whether a server takes requests. It has no
// clock. One goroutine owns it.
type health struct {
	// answered is true once a probe succeeded, down while probes fail.
	answered, down bool
	// slow counts failed probes in a row.
	slow int
	// open is true while failed requests keep requests away, until openUntil. opened
	// counts the times in a row.
	open      bool
	openUntil time.Time
	opened    int
}

// probed updates the health after a probe. failed is true for a probe without a good answer.
// decisive is true when the failure proves that the server does not serve, and false when the server
// may only be busy. The server is down after one decisive failure or maxSlowProbes others in a row.
func (h *health) probed(failed, decisive bool) {
	if !failed {
		h.answered, h.down, h.slow = true, false, 0
		return
	}
	if h.slow++; decisive || h.slow >= maxSlowProbes {
		h.down = true
	}
}

// requests updates the health from failed, the number of requests in a row that have failed. It is a
// circuit breaker: after maxFailedRequests failures the server gets no requests for a while. It
// returns the count to go on with. After the pause one more failure opens the breaker again.
func (h *health) requests(failed int, now time.Time) int {
	switch {
	case failed == 0:
		h.open, h.opened = false, 0
	case h.open && !now.Before(h.openUntil):
		h.open = false
		return maxFailedRequests - 1
	case !h.open && failed >= maxFailedRequests:
		h.open = true
		h.opened++
		h.openUntil = now.Add(backoff.Nth(backoff.Doubling(firstOpen, lastOpen), h.opened))
	}
	return failed
}

// state returns Starting before the first good probe, Unhealthy while probes or requests fail, and
// else Ready.
func (h *health) state() State {
	switch {
	case !h.answered:
		return Starting
	case h.down, h.open:
		return Unhealthy
	}
	return Ready
}
