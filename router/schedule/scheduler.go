package schedule

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Options bound a Scheduler. The zero value is ready for use.
type Options struct {
	// Expiry is how long a request stays booked when nothing is heard of it; 0
	// means 5 minutes.
	Expiry time.Duration
	// MaxRequests bounds the booked requests; 0 means 65,536. MaxBlocks bounds
	// the sum of their prompt blocks; 0 means 1<<24.
	MaxRequests, MaxBlocks int
	// Now tells the time for expiry, which needs it to be monotonic; nil means
	// time.Now.
	Now func() time.Time
}

// Validate reports the first option that is out of range.
func (o *Options) Validate() error {
	if o.Expiry < 0 {
		return fmt.Errorf("request expiry: %v is negative", o.Expiry)
	}
	if o.MaxRequests < 0 || o.MaxBlocks < 0 {
		return fmt.Errorf("max requests %d, max blocks %d: one is negative", o.MaxRequests, o.MaxBlocks)
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Expiry == 0 {
		o.Expiry = 5 * time.Minute
	}
	if o.MaxRequests == 0 {
		o.MaxRequests = 1 << 16
	}
	if o.MaxBlocks == 0 {
		o.MaxBlocks = 1 << 24
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Stats are a scheduler's gauges and counters.
type Stats struct {
	// ActiveRequests and ActiveBlocks are what is booked now; blocks of several
	// requests count for each.
	ActiveRequests, ActiveBlocks int
	// Booked, Freed, Expired and Abandoned count requests: Abandoned ones lost
	// their worker. Unbooked ones were routed without being booked, because too
	// many were.
	Booked, Freed, Expired, Abandoned, Unbooked uint64
}

// Scheduler chooses workers and keeps account of what they were given.
type Scheduler struct {
	config   Config
	selector Selector
	expiry   time.Duration
	now      func() time.Time

	mu     sync.Mutex
	active active
	stats  Stats
}

// New returns a scheduler that weighs overlap by c and chooses by s. s belongs
// to the scheduler from now on.
func New(c Config, s Selector, o Options) (*Scheduler, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	o = o.withDefaults()
	return &Scheduler{
		config:   c,
		selector: s,
		expiry:   o.Expiry,
		now:      o.Now,
		active:   newActive(o.MaxRequests, o.MaxBlocks),
	}, nil
}

// Request is a request to be sent to a worker.
type Request struct {
	Prompt
	// ID names the request in later calls; it may be empty without Book.
	ID string
	// Book puts the request on the account of the chosen worker.
	Book bool
	// Sequence are the SequenceHashes of the prompt's full blocks. They are
	// copied when kept.
	Sequence []kv.SequenceHash
}

// Schedule chooses among the workers of matches, which must be ordered by
// worker, and books the request if asked to. It fills dst, reusing its memory,
// with the candidates and returns it with the index of the chosen one. The
// error is ErrNoCandidates or ErrDuplicateRequest. When there is no room to
// book the request, it is routed all the same.
func (s *Scheduler) Schedule(dst []Candidate, r *Request, matches []index.Match) ([]Candidate, int, error) {
	dst = dst[:0]
	if len(matches) == 0 {
		return dst, 0, ErrNoCandidates
	}
	for i := range matches {
		effective := s.config.Effective(matches[i].Hits)
		dst = append(dst, Candidate{
			Worker:       matches[i].Worker,
			Hits:         matches[i].Hits,
			Effective:    effective,
			CachedTokens: CachedTokens(effective, r.BlockSize),
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked()
	if r.Book && s.active.requests[r.ID] != nil {
		return dst, 0, fmt.Errorf("request %q: %w", r.ID, ErrDuplicateRequest)
	}
	for i := range dst {
		dst[i].Load = s.active.load(dst[i].Worker, r.Sequence)
	}
	chosen := s.selector.Select(r.Prompt, dst)
	if r.Book {
		if err := s.addLocked(r, dst[chosen].Worker, dst[chosen].CachedTokens); err != nil {
			s.stats.Unbooked++
		}
	}
	return dst, chosen, nil
}

// Add books a request that somebody else sent to worker w, where cachedTokens
// of its prompt need no computing. The error is ErrDuplicateRequest or
// ErrTooManyRequests.
func (s *Scheduler) Add(r *Request, w kv.Worker, cachedTokens int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked()
	return s.addLocked(r, w, cachedTokens)
}

func (s *Scheduler) addLocked(r *Request, w kv.Worker, cachedTokens int) error {
	err := s.active.add(booking{
		id:       r.ID,
		worker:   w,
		sequence: slices.Clone(r.Sequence),
		prefill:  max(0, r.Tokens-cachedTokens),
	}, s.now())
	if err == nil {
		s.stats.Booked++
	}
	return err
}

// MarkPrefillCompleted says that a request's prompt is computed, which can be
// said again to keep a long request from expiring. The error is
// ErrUnknownRequest.
func (s *Scheduler) MarkPrefillCompleted(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active.prefillCompleted(id, s.now())
}

// Free ends a request. It reports whether the request was active; to free one
// that is not is no error.
func (s *Scheduler) Free(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.active.free(id) {
		return false
	}
	s.stats.Freed++
	return true
}

// RemoveWorker ends every request of a worker that is gone.
func (s *Scheduler) RemoveWorker(w kv.Worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Abandoned += uint64(s.active.removeWorker(w))
}

// Expire ends the requests that nothing was heard of for too long. Booking
// does so too; it is only needed while nothing is booked.
func (s *Scheduler) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked()
}

func (s *Scheduler) expireLocked() {
	s.stats.Expired += uint64(s.active.expire(s.now().Add(-s.expiry)))
}

// Stats is a snapshot of the counters.
func (s *Scheduler) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stats
	out.ActiveRequests, out.ActiveBlocks = len(s.active.requests), s.active.blocks
	return out
}

// PotentialLoad is what a worker would have to do if it were given a request.
type PotentialLoad struct {
	Worker kv.Worker
	// PrefillTokens are prompt tokens to compute, DecodeBlocks distinct prompt
	// blocks to keep, a partial one of the request included.
	PrefillTokens, DecodeBlocks int
}

// PotentialLoads is the load of each worker of matches if it were given r.
func (s *Scheduler) PotentialLoads(r *Request, matches []index.Match) []PotentialLoad {
	out := make([]PotentialLoad, len(matches))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, m := range matches {
		cached := CachedTokens(s.config.Effective(m.Hits), r.BlockSize)
		load := s.active.load(m.Worker, r.Sequence)
		out[i] = PotentialLoad{
			Worker:        m.Worker,
			PrefillTokens: load.PrefillTokens + max(0, r.Tokens-cached),
			// Blocks that are not in Sequence, such as a partial one, are nobody
			// else's and count in full.
			DecodeBlocks: load.ActiveBlocks + load.NewBlocks + r.Blocks() - len(r.Sequence),
		}
	}
	return out
}
