package router

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Errors that callers tell apart with errors.Is; those of package schedule come
// through too.
var (
	// ErrNoWorkers: no worker is known to send a request to.
	ErrNoWorkers = schedule.ErrNoCandidates
	// ErrNoRequestID: a request that is to be kept account of has no id.
	ErrNoRequestID = errors.New("a request id is required to update states")
)

// Router chooses workers. Make one with New and run it with Run.
type Router struct {
	mode      Mode
	log       *zap.Logger
	prefill   float64 // for the log line
	index     *index.Index
	scheduler *schedule.Scheduler
	feeds     *feedSet
	loads     *loadTable
	snapshots *snapshotKeeper
	transport Transport
	timeout   time.Duration
	slots     int
	results   chan *queryResult
	// work holds *decision values, so that deciding allocates little.
	work sync.Pool
}

// decision is the memory of one decision.
type decision struct {
	hasher     kv.Hasher
	locals     []kv.LocalHash
	matches    index.Matches
	candidates []schedule.Candidate
}

// New returns a router that listens to t once Run is called. The caller closes
// t after Run has returned.
func New(o Options, t Transport) (*Router, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	o = o.withDefaults()
	x, err := index.New(o.Index)
	if err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	var selector schedule.Selector = &schedule.RoundRobin{}
	if o.Mode == ModeKV {
		if selector, err = schedule.NewCostSelector(*o.Weights, o.Choice); err != nil {
			return nil, fmt.Errorf("router: %w", err)
		}
	}
	s, err := schedule.New(*o.Weights, selector, o.Requests)
	if err != nil {
		return nil, fmt.Errorf("router: %w", err)
	}
	r := &Router{
		mode: o.Mode, log: o.Log, prefill: o.Weights.PrefillLoadScale,
		index: x, scheduler: s, feeds: newFeedSet(x, s, &o), loads: newLoadTable(), transport: t,
		timeout: o.QueryTimeout, slots: o.MaxQueries,
		results: make(chan *queryResult),
	}
	if g, ok := t.(*Registry); ok {
		r.feeds.heard, r.feeds.stored = g.heard, g.stored()
	}
	r.snapshots = &snapshotKeeper{store: o.Snapshots, threshold: uint64(max(0, o.SnapshotThreshold)),
		reset: o.ResetStates, feeds: r.feeds, log: o.Log}
	r.work.New = func() any { return new(decision) }
	return r, nil
}

// Request is a prompt to find a worker for.
type Request struct {
	// ID names the request in later calls. It may be empty unless UpdateStates.
	ID     string
	Tokens []uint32
	// LoRA and Salt are the adapter's name and the cache salt; both change what
	// is a hit.
	LoRA, Salt string
	// UpdateStates books the request on the chosen worker until Free.
	UpdateStates bool
}

// Match is the answer to FindBestMatch.
type Match struct {
	Worker kv.Worker
	// Hits are the prompt's blocks that the worker has, by tier, Effective their
	// weighted number, and CachedTokens the same in tokens.
	Hits         index.Hits
	Effective    float64
	CachedTokens int
	Quality      Quality
}

// FindBestMatch chooses the worker for a request. The error is ErrNoWorkers,
// ErrNoRequestID or schedule.ErrDuplicateRequest.
func (r *Router) FindBestMatch(q *Request) (Match, error) {
	if q.UpdateStates && q.ID == "" {
		return Match{}, ErrNoRequestID
	}
	d := r.work.Get().(*decision)
	defer r.work.Put(d)
	view, err := r.match(d, q)
	if err != nil {
		return Match{}, err
	}
	request := r.request(d, q, view)
	var chosen int
	d.candidates, chosen, err = r.scheduler.Schedule(d.candidates, &request, d.matches.Workers)
	if err != nil {
		return Match{}, err
	}
	r.logFormulas(q, d.candidates, chosen)
	c := &d.candidates[chosen]
	m := Match{Worker: c.Worker, Hits: c.Hits, Effective: c.Effective, CachedTokens: c.CachedTokens, Quality: view.quality}
	if r.mode == ModeRoundRobin {
		m.Quality = QualityFallback
	}
	return m, nil
}

// match fills d with what every worker has of the prompt.
func (r *Router) match(d *decision, q *Request) (*clusterView, error) {
	view := r.feeds.current.Load()
	if view.workers == 0 {
		return nil, ErrNoWorkers
	}
	d.locals = d.hasher.AppendLocals(d.locals[:0], q.Tokens, view.blockSize, kv.LocalSeed(q.LoRA, q.Salt))
	r.index.Match(&d.matches, d.locals)
	return view, nil
}

func (r *Router) request(d *decision, q *Request, v *clusterView) schedule.Request {
	return schedule.Request{
		Prompt:   schedule.Prompt{Tokens: len(q.Tokens), BlockSize: v.blockSize},
		ID:       q.ID,
		Book:     q.UpdateStates,
		Sequence: d.matches.Sequence,
	}
}

// logFormulas logs how each worker's cost came about, at debug level.
func (r *Router) logFormulas(q *Request, candidates []schedule.Candidate, chosen int) {
	if r.mode != ModeKV || !r.log.Core().Enabled(zap.DebugLevel) {
		return
	}
	for i := range candidates {
		c := &candidates[i]
		name := fmt.Sprintf("worker_%d", c.Worker.ID)
		if c.Worker.Rank != 0 {
			name += fmt.Sprintf("/%d", c.Worker.Rank)
		}
		r.log.Debug(fmt.Sprintf("Formula for %s: %.1f = %.1f * %.1f + %.1f (cached_blocks: %d)",
			name, c.Cost, r.prefill, c.Prefill, c.Decode, c.Hits.Total()),
			zap.String("request", q.ID), zap.Bool("chosen", i == chosen))
	}
}

// AddRequest keeps account of a request that somebody else sent to worker w,
// where cachedTokens of its prompt need no computing. The error is ErrNoWorkers,
// ErrNoRequestID, or one of package schedule.
func (r *Router) AddRequest(q *Request, w kv.Worker, cachedTokens int) error {
	if q.ID == "" {
		return ErrNoRequestID
	}
	view := r.feeds.current.Load()
	if view.workers == 0 {
		return ErrNoWorkers
	}
	d := r.work.Get().(*decision)
	defer r.work.Put(d)
	d.locals = d.hasher.AppendLocals(d.locals[:0], q.Tokens, view.blockSize, kv.LocalSeed(q.LoRA, q.Salt))
	return r.scheduler.Add(&schedule.Request{
		Prompt:   schedule.Prompt{Tokens: len(q.Tokens), BlockSize: view.blockSize},
		ID:       q.ID,
		Sequence: kv.AppendSequence(nil, d.locals),
	}, w, cachedTokens)
}

// MarkPrefillCompleted takes a request's prompt off its worker's prefill load.
// Said again it keeps a long request from expiring. The error is
// schedule.ErrUnknownRequest.
func (r *Router) MarkPrefillCompleted(id string) error { return r.scheduler.MarkPrefillCompleted(id) }

// Free ends a request and reports whether it was active. To free one that is
// not is no error.
func (r *Router) Free(id string) bool { return r.scheduler.Free(id) }

// PotentialLoads is what each worker would have to do if it were given the
// request. The error is ErrNoWorkers.
func (r *Router) PotentialLoads(q *Request) ([]schedule.PotentialLoad, error) {
	d := r.work.Get().(*decision)
	defer r.work.Put(d)
	view, err := r.match(d, q)
	if err != nil {
		return nil, err
	}
	request := r.request(d, q, view)
	return r.scheduler.PotentialLoads(&request, d.matches.Workers), nil
}
