package demo

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/lab/cluster"
	"github.com/blockyard-ai/blockyard/lab/workload"
)

// interruptTimeout bounds a mark_free after the run was cancelled.
const interruptTimeout = 500 * time.Millisecond

// engine is a simulated engine with a gate before it.
type engine struct {
	*cluster.Engine
	gate gate
}

// player sends a workload: each request to the router, then to the engine that the
// router chose, in an open loop. A request is sent when it is due, however many are
// under way, up to concurrency.
type player struct {
	calls       *caller
	router      cluster.Endpoint
	engines     map[uint64]*engine
	speedUp     float64
	concurrency int
	rec         *recorder
	// midway, if set, runs in its own goroutine when half of the requests have ended.
	midway func(context.Context)
}

// due is a request with its sending time.
type due struct {
	at      time.Duration // real time since the start
	index   int
	history []uint32
}

// dueQueue is a heap of requests, the next one first.
type dueQueue []due

func (q dueQueue) Len() int { return len(q) }
func (q dueQueue) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].at, q[j].at), cmp.Compare(q[i].index, q[j].index)) < 0
}
func (q dueQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *dueQueue) Push(x any)   { *q = append(*q, x.(due)) }
func (q *dueQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	(*q)[last] = due{}
	*q = (*q)[:last]
	return x
}

// ended is the end of a request, answered or not.
type ended struct {
	index   int
	history []uint32
}

// play sends every request when it is due and returns when the last one has ended. At most
// p.concurrency are under way; a turn of a session waits for the turn before it. Once half have
// ended, p.midway runs. play returns the cause of ctx when ctx ends first. No request is under
// way when it returns.
func (p *player) play(ctx context.Context, requests []workload.Request) error {
	next, first := linkTurns(requests)
	var queue dueQueue
	for _, i := range first {
		queue = append(queue, due{at: p.real(requests[i].At), index: i})
	}
	heap.Init(&queue)
	results := make(chan ended, p.concurrency)
	inFlight, finished := 0, 0
	midwayDone := make(chan struct{})
	startMidway := func() {
		defer close(midwayDone)
		if p.midway != nil {
			p.midway(ctx)
		}
	}
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil && finished < len(requests) {
		var dueNow <-chan time.Time // nil blocks while no further request may start
		if len(queue) > 0 && inFlight < p.concurrency {
			wait := queue[0].at - time.Since(start)
			if wait <= 0 {
				d := heap.Pop(&queue).(due)
				inFlight++
				go func() { results <- ended{d.index, p.serve(ctx, &requests[d.index], d.history, start.Add(d.at))} }()
				continue
			}
			timer.Reset(wait)
			dueNow = timer.C
		}
		select {
		case <-dueNow:
		case <-ctx.Done():
		case e := <-results:
			inFlight--
			finished++
			if finished == (len(requests)+1)/2 {
				go startMidway()
			}
			if i := next[e.index]; i >= 0 {
				at := max(p.real(requests[i].At), time.Since(start)+p.real(requests[i].Think))
				heap.Push(&queue, due{at: at, index: i, history: e.history})
			}
		}
	}
	for range inFlight {
		<-results
	}
	if finished >= (len(requests)+1)/2 && len(requests) > 0 {
		<-midwayDone
	}
	return context.Cause(ctx)
}

func (p *player) real(simulated time.Duration) time.Duration {
	return time.Duration(float64(simulated) / p.speedUp)
}

// linkTurns returns, for each request, the next one of its session (-1 for none), and
// the requests that open a session.
func linkTurns(requests []workload.Request) (next, first []int) {
	next = make([]int, len(requests))
	last := make(map[int]int)
	for i := range requests {
		next[i] = -1
		if before, ok := last[requests[i].Session]; ok {
			next[before] = i
		} else {
			first = append(first, i)
		}
		last[requests[i].Session] = i
	}
	return next, first
}

// serve sends one request through router and engine, and records the outcome. due is when it was
// due. It returns the history of the session's next turn: the prompt and the output.
func (p *player) serve(ctx context.Context, r *workload.Request, history []uint32, due time.Time) []uint32 {
	tokens := r.Prompt(history)
	got, err := p.answer(ctx, r, tokens, due)
	if err != nil && ctx.Err() != nil {
		return nil // the run is being stopped: no failure of the request
	}
	if err != nil {
		p.rec.fail(r.ID, err)
		return tokens
	}
	p.rec.succeeded(r.ID, got.engine, len(tokens), got.served)
	return append(tokens, got.output...)
}

// answer is the result of a request.
type answer struct {
	engine *engine
	served Served
	output []uint32
}

// answer asks the router for a worker, has the chosen engine answer the prompt, and tells the
// router of the first token and of the end. It records the time from due to the first token in
// simulated time.
func (p *player) answer(ctx context.Context, r *workload.Request, tokens []uint32, due time.Time) (got answer, err error) {
	body := routeBody(tokens)
	asked := time.Now()
	var route routeAnswer
	if err := p.calls.post(ctx, p.router, "/v1/route", body, r.ID, &route); err != nil {
		return got, err
	}
	p.rec.routed(time.Since(asked))
	defer func() {
		if freeErr := p.free(ctx, r.ID); freeErr != nil && err == nil {
			err = fmt.Errorf("mark_free: %w", freeErr)
		}
	}()
	got.engine = p.engines[route.WorkerID]
	if got.engine == nil {
		return got, fmt.Errorf("%s: chose worker %d, which is not one of ours", p.router.Name, route.WorkerID)
	}
	// The demo made the request wait at the gate, not the engine.
	due = due.Add(got.engine.gate.wait(ctx))
	var markErr error
	got.output, err = p.calls.generate(ctx, got.engine.Endpoint, r.ID, tokens, r.OutputTokens, func(s Served) {
		got.served = s
		p.rec.firstToken(time.Duration(float64(time.Since(due)) * p.speedUp))
		markErr = p.calls.mark(ctx, p.router, "mark_prefill", r.ID)
	})
	if err == nil && markErr != nil {
		err = fmt.Errorf("mark_prefill: %w", markErr)
	}
	return got, err
}

// free tells the router that the request id has ended, well or not. It does so also after ctx has
// ended, with less patience, because the router would count the request as load.
func (p *player) free(ctx context.Context, id string) error {
	patience := p.calls.limits.call
	if ctx.Err() != nil {
		patience = interruptTimeout
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return p.calls.mark(ctx, p.router, "mark_free", id)
}

// resetRetry is the time between two attempts to reset a busy engine.
const resetRetry = 10 * time.Millisecond

// resetCache drops an engine's prefix cache. The engine refuses while a request uses a
// block. New requests therefore wait at the gate while the others end, for at most
// patience.
func (e *engine) resetCache(ctx context.Context, calls *caller, patience time.Duration) error {
	e.gate.shut()
	defer e.gate.open()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	retry := time.NewTicker(resetRetry)
	defer retry.Stop()
	for {
		var answer struct {
			Success bool `json:"success"`
		}
		err := calls.post(ctx, e.Endpoint, "/v1/reset_prefix_cache", nil, "", &answer)
		if err == nil && answer.Success {
			return nil
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			if err != nil {
				return fmt.Errorf("reset the cache of %s: %w", e.Endpoint.Name, err)
			}
			return fmt.Errorf("reset the cache of %s: refused for %s", e.Endpoint.Name, patience)
		}
	}
}

// gate holds requests back while it is shut. The zero value is open.
type gate struct {
	mu sync.Mutex
	// opened is closed when the gate opens; nil while it is open.
	opened chan struct{}
}

// shut makes later calls of wait block until open.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened == nil {
		g.opened = make(chan struct{})
	}
}

// open opens the gate: all requests that wait at it go on.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}

// wait returns when the gate is open or ctx ends. It returns the time that it waited.
func (g *gate) wait(ctx context.Context) time.Duration {
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	if opened == nil {
		return 0
	}
	start := time.Now()
	select {
	case <-opened:
	case <-ctx.Done():
	}
	return time.Since(start)
}
