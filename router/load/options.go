package load

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Errors for errors.Is.
var (
	// ErrDuplicateRequest says that a request of that id is active.
	ErrDuplicateRequest = errors.New("request is active already")
	// ErrUnknownRequest says that no request of that id is active.
	ErrUnknownRequest = errors.New("request is not active")
	// ErrTooManyRequests says that a bound of the account is reached.
	ErrTooManyRequests = errors.New("too many active requests")
)

// Options bound an Account. The zero value is ready for use.
type Options struct {
	// Expiry is how long a silent request stays; 0 means 300 s.
	Expiry time.Duration
	// Provisional is the expiry of a provisional request before the first call for it; 0
	// means 30 s. It is at most Expiry.
	Provisional time.Duration
	// MaxRequests bounds the active requests, each of about 300 bytes without its
	// blocks; 0 means 1<<20. MaxBlocks bounds the sum of their tracked prompt
	// blocks; 0 means 1<<24.
	MaxRequests, MaxBlocks int
	// Ended is called with the id of each request that Expire or RemoveWorker ends,
	// or that Reconcile finds to be a phantom. Ended must not use the account. It
	// may be nil.
	Ended func(id string)
	// Journal is told of the account's own bookings; nil tells nobody.
	Journal Journal
	// Now is the monotonic clock; nil means time.Now.
	Now func() time.Time
}

// maxBlocks keeps sums of weights below 2^63.
const maxBlocks = 1 << 31

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	if o.Expiry < 0 {
		return fmt.Errorf("active request expiry: %v is negative", o.Expiry)
	}
	if o.Provisional < 0 {
		return fmt.Errorf("provisional request expiry: %v is negative", o.Provisional)
	}
	if o.MaxRequests < 0 {
		return fmt.Errorf("max active requests: %d is negative", o.MaxRequests)
	}
	if o.MaxBlocks < 0 || o.MaxBlocks > maxBlocks {
		return fmt.Errorf("max active blocks: %d is not in 0..%d", o.MaxBlocks, maxBlocks)
	}
	return nil
}

// withDefaults returns the options with defaults in place of zero values.
func (o Options) withDefaults() Options {
	o.Expiry = cmp.Or(o.Expiry, 300*time.Second)
	o.Provisional = cmp.Or(o.Provisional, 30*time.Second)
	o.Provisional = min(o.Provisional, o.Expiry)
	o.MaxRequests = cmp.Or(o.MaxRequests, 1<<20)
	o.MaxBlocks = cmp.Or(o.MaxBlocks, 1<<24)
	if o.Ended == nil {
		o.Ended = func(string) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Stats is a snapshot of an account. The metric names follow "blockyard_router_".
type Stats struct {
	Requests int `metric:"active_requests" help:"Requests booked on workers."`
	Foreign  int `metric:"active_requests_foreign" help:"Requests booked on workers by other routers, with router_replica_sync."`
	// Provisional requests were booked over NATS and not confirmed yet. They are a part of Requests.
	Provisional    int `metric:"-"`
	Workers        int `metric:"-"`
	Blocks         int `metric:"active_blocks" help:"Prompt blocks of the booked requests, counted for each request."`
	DistinctBlocks int `metric:"active_blocks_distinct" help:"Prompt blocks of the booked requests. Shared prefixes count once."`
	// Nodes are the runs that the distinct blocks form.
	Nodes    int    `metric:"-"`
	Added    uint64 `metric:"requests_booked" help:"Requests booked on a worker."`
	Freed    uint64 `metric:"requests_freed" help:"Requests freed."`
	Phantoms uint64 `metric:"requests_phantom" help:"Requests whose prefill was freed because their engine did not report them."`
	Expired  uint64 `metric:"requests_expired" help:"Requests that expired after silence."`
	// Unheard is the part of Expired that was provisional.
	Unheard    uint64 `metric:"requests_unheard" help:"Expired requests without any call after the booking. Their caller over NATS may have left."`
	Abandoned  uint64 `metric:"requests_abandoned" help:"Requests whose worker left."`
	Duplicates uint64 `metric:"requests_duplicate" help:"Requests refused because their id was active."`
	// Refused requests reached the bound of the account.
	Refused uint64 `metric:"-"`
}
