package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Errors of Enter.
var (
	ErrTenantFull = errors.New("the tenant has too many waiting requests")
	ErrFull       = errors.New("too many requests wait")
	ErrTimeout    = errors.New("no worker had time for the request")
)

// Defaults of Limits.
const (
	DefaultWaiting = 8192
	DefaultWait    = 10 * time.Minute
)

// Limits bound a Queue.
type Limits struct {
	// Running bounds the requests in progress.
	Running int
	// Waiting and Bytes bound the waiting requests and their bytes in all, TenantWaiting and
	// TenantBytes those of one tenant. 0 means DefaultWaiting and 1 GiB, a quarter of
	// these for a tenant.
	Waiting, TenantWaiting int
	Bytes, TenantBytes     int64
	// Wait bounds the time that a request waits; 0 means DefaultWait.
	Wait time.Duration
}

// withDefaults returns the limits without zeros.
func (l Limits) withDefaults() Limits {
	l.Waiting = cmp.Or(l.Waiting, DefaultWaiting)
	l.TenantWaiting = cmp.Or(l.TenantWaiting, max(l.Waiting/4, 1))
	l.Bytes = cmp.Or(l.Bytes, 1<<30)
	l.TenantBytes = cmp.Or(l.TenantBytes, max(l.Bytes/4, 1))
	l.Wait = cmp.Or(l.Wait, DefaultWait)
	return l
}

// Validate reports the first limit that is out of range.
func (l Limits) Validate() error {
	switch {
	case l.Running < 1:
		return fmt.Errorf("running: %d requests, want at least 1", l.Running)
	case l.Waiting < 0 || l.TenantWaiting < 0:
		return fmt.Errorf("waiting: %d requests, %d of a tenant: want no negative number", l.Waiting, l.TenantWaiting)
	case l.Bytes < 0 || l.TenantBytes < 0:
		return fmt.Errorf("bytes: %d, %d of a tenant: want no negative number", l.Bytes, l.TenantBytes)
	case l.Wait < 0:
		return fmt.Errorf("wait: %s is negative", l.Wait)
	}
	return nil
}

// Request describes a request that enters.
type Request struct {
	Tenant string
	// Priority is strict between all tenants: a higher one is first. Order is strict among the
	// requests of one tenant and Priority: a lower one is first, and equal ones keep the order of
	// arrival.
	Priority uint32
	Order    int
	// Weight is the tenant's share; less than 1 counts as 1. The latest request of the tenant
	// decides.
	Weight int
	// Tokens is what the request costs, prompt and expected output; less than 1 counts as 1.
	Tokens int
	// Bytes is the memory that the request keeps while it waits.
	Bytes int64
}

// Stats are numbers of a Queue at one moment.
type Stats struct {
	Running      int     `metric:"running" help:"Requests that were admitted to the workers of a model."`
	Waiting      int     `metric:"waiting" help:"Requests that wait until fewer are at the workers of their model."`
	WaitingBytes int64   `metric:"waiting_bytes" help:"Memory of the requests that wait, in bytes."`
	Refused      Refused `metric:"-"`
}

// Refused counts the requests that a limit refused, by the limit.
type Refused struct {
	Tenant  uint64 `metric:"tenant_queue_full"`
	Full    uint64 `metric:"queue_full"`
	Timeout uint64 `metric:"queue_timeout"`
}

// Queue admits the requests of one model. Make one with New.
type Queue struct {
	limits Limits

	mu      sync.Mutex
	stats   Stats
	levels  levels
	tenants map[string]*usage
}

// usage is what the waiting requests of a tenant take, of all priorities.
type usage struct {
	waiting int
	bytes   int64
}

// waiter is a waiting request.
type waiter struct {
	Request
	// admitted is closed when the request may go on; isAdmitted is true from then on.
	admitted   chan struct{}
	isAdmitted bool
}

// New returns an empty Queue. The error names the limit that is out of range.
func New(l Limits) (*Queue, error) {
	if err := l.Validate(); err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	return &Queue{limits: l.withDefaults(), tenants: make(map[string]*usage)}, nil
}

// Enter waits until the request may go on, and returns the function that ends it. The error
// is ErrTenantFull, ErrFull, ErrTimeout or the cause of ctx's end.
func (q *Queue) Enter(ctx context.Context, r Request) (release func(), err error) {
	r.Weight, r.Tokens = max(r.Weight, 1), max(r.Tokens, 1)
	w, err := q.arrive(r)
	if err != nil {
		return nil, err
	}
	release = sync.OnceFunc(q.leave)
	timer := time.NewTimer(q.limits.Wait)
	defer timer.Stop()
	select {
	case <-w.admitted:
		return release, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
		err = ErrTimeout
	}
	if !q.remove(w, errors.Is(err, ErrTimeout)) {
		// The request was admitted in the same moment.
		release()
	}
	return nil, err
}

// Stats returns the numbers of the moment.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stats
}

// arrive admits a request or adds it to its queue.
func (q *Queue) arrive(r Request) (*waiter, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &waiter{Request: r, admitted: make(chan struct{})}
	// While requests wait, all places are taken.
	if q.stats.Running < q.limits.Running {
		q.admitLocked(w)
		return w, nil
	}
	u := q.tenants[r.Tenant]
	if u == nil {
		u = new(usage)
	}
	switch {
	case q.stats.Waiting >= q.limits.Waiting || q.stats.WaitingBytes+r.Bytes > q.limits.Bytes:
		q.stats.Refused.Full++
		return nil, ErrFull
	case u.waiting >= q.limits.TenantWaiting || u.bytes+r.Bytes > q.limits.TenantBytes:
		q.stats.Refused.Tenant++
		return nil, ErrTenantFull
	}
	q.tenants[r.Tenant] = u
	q.countLocked(w, 1)
	q.levels.add(w)
	return w, nil
}

// admitLocked lets a request go on.
func (q *Queue) admitLocked(w *waiter) {
	q.stats.Running++
	w.isAdmitted = true
	close(w.admitted)
}

// countLocked adds a waiting request to the numbers, or with n = -1 takes it out.
func (q *Queue) countLocked(w *waiter, n int) {
	q.stats.Waiting += n
	q.stats.WaitingBytes += int64(n) * w.Bytes
	u := q.tenants[w.Tenant]
	u.waiting += n
	u.bytes += int64(n) * w.Bytes
	if u.waiting == 0 {
		delete(q.tenants, w.Tenant)
	}
}

// remove takes a waiting request out. late is true when its time to wait was over. It returns false
// for a request that was admitted.
func (q *Queue) remove(w *waiter, late bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if late {
		q.stats.Refused.Timeout++
	}
	if w.isAdmitted {
		return false
	}
	q.levels.remove(w)
	q.countLocked(w, -1)
	return true
}

// leave ends a request and admits the next ones.
func (q *Queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stats.Running--
	for q.stats.Running < q.limits.Running && q.stats.Waiting > 0 {
		w := q.levels.next()
		q.countLocked(w, -1)
		q.admitLocked(w)
	}
}
