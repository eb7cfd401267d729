package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
)

// Errors that a submitter or a client hears of.
var (
	errFull     = errors.New("too many requests are waiting")
	errStopping = errors.New("engine is shutting down")
	errAborted  = errors.New("request was aborted")
)

const (
	// inboxSize is how many posted functions may wait for the core; a poster
	// waits when there are more.
	inboxSize = 256
	// drainTime is how long a stopping engine goes on with what it has.
	drainTime = 2 * time.Second
)

// core is the scheduler: one goroutine, run, that owns everything in it.
// Others call post.
type core struct {
	opts    Options
	pool    *pool
	device  device
	remote  remote
	publish func(payload []byte)
	giveUp  func() // ends the agent session, so that what waits for it fails
	ctr     *counters

	inbox chan func()
	ended chan struct{}

	waiting []*request // in order of arrival, preempted ones first
	running []*request // in order of admission
	talks   int        // conversations that are not over
	numbers uint64     // requests so far
	scratch []int32
	due     time.Time // when the last step had to end; zero after an idle moment

	stopping bool
	deadline *time.Timer // of the drain
}

func newCore(o Options, d device, r remote, publish func([]byte), giveUp func(), ctr *counters) *core {
	return &core{
		opts:    o,
		pool:    newPool(o.DeviceBlocks, int(o.Namespace.BlockSize)),
		device:  d,
		remote:  r,
		publish: publish,
		giveUp:  giveUp,
		ctr:     ctr,
		inbox:   make(chan func(), inboxSize),
		ended:   make(chan struct{}),
	}
}

// post has run call f. It waits for room in the inbox, and drops f once run
// has returned.
func (c *core) post(f func()) {
	select {
	case c.inbox <- f:
	case <-c.ended:
	}
}

// run steps while there is something to compute and waits for the inbox
// otherwise. When ctx ends it takes no more requests, goes on with those it has
// for at most drainTime, fails the rest, and returns when nothing is held any
// more.
func (c *core) run(ctx context.Context) {
	defer close(c.ended)
	defer context.AfterFunc(ctx, func() { c.post(c.drain) })()
	for !c.stopping || !c.quiet() {
		if !c.step() {
			f := <-c.inbox
			f()
		}
		c.drainInbox()
	}
	c.deadline.Stop()
}

// drain begins the end.
func (c *core) drain() {
	c.stopping = true
	c.deadline = time.AfterFunc(drainTime, func() { c.post(c.failAll) })
}

func (c *core) drainInbox() {
	for {
		select {
		case f := <-c.inbox:
			f()
		default:
			return
		}
	}
}

// quiet reports whether nothing is under way: no request, no conversation, no
// event that has not been handed to the publisher.
func (c *core) quiet() bool {
	return len(c.waiting) == 0 && len(c.running) == 0 && c.talks == 0 && len(c.pool.events) == 0
}

// submit queues a request.
func (c *core) submit(r *request) error {
	switch {
	case c.stopping:
		c.ctr.refused.Add(1)
		return errStopping
	case len(c.waiting) >= c.opts.MaxWaiting:
		c.ctr.refused.Add(1)
		return errFull
	}
	c.ctr.requests.Add(1)
	c.numbers++
	r.number = c.numbers
	c.waiting = append(c.waiting, r)
	return nil
}

// abort ends a request early, because its client has gone or the engine stops.
// Blocks that a load is writing stay taken until it reports.
func (c *core) abort(r *request) {
	if r.phase == ended {
		return
	}
	r.aborted = true
	if r.phase != loading {
		c.ctr.aborted.Add(1)
		c.end(r, update{err: errAborted})
	}
}

// end takes r out of the scheduler, gives back what it holds and tells its
// client.
func (c *core) end(r *request, u update) {
	drop := func(o *request) bool { return o == r }
	c.running = slices.DeleteFunc(c.running, drop)
	c.waiting = slices.DeleteFunc(c.waiting, drop)
	c.vacate(r)
	r.phase = ended
	r.tell(u)
}

// vacate releases r's blocks and ends its conversation.
func (c *core) vacate(r *request) {
	c.pool.release(r.blocks)
	r.blocks = nil
	r.computed, r.cached, r.offered, r.scheduled = 0, 0, 0, 0
	r.hit, r.lookups = lookupHit{}, 0
	if r.talk != nil {
		r.after = r.talk.over()
		r.talk.close()
		r.talk = nil
	}
}

// failAll ends every request and the session with the agent.
func (c *core) failAll() {
	c.giveUp()
	for _, r := range slices.Concat(c.running, c.waiting) {
		c.abort(r)
	}
}

// reset drops the prefix cache; false when a block is in use.
func (c *core) reset() bool {
	if !c.pool.reset() {
		c.ctr.resetsRefused.Add(1)
		return false
	}
	c.ctr.resets.Add(1)
	return true
}

// publishEvents hands what happened to the pool to the publisher: one batch,
// or nothing when nothing happened.
func (c *core) publishEvents() {
	events := c.pool.takeEvents()
	if len(events) == 0 {
		return
	}
	c.publish(engineevent.AppendBatch(nil, &engineevent.Batch{
		Timestamp: float64(time.Now().UnixMicro()) / 1e6,
		Rank:      c.opts.Worker.Rank,
		HasRank:   true,
		Events:    events,
	}))
}

// snapshot is the engine's state for people and for comparison with what
// others believe of it.
func (c *core) snapshot() State {
	s := State{
		WorkerID: uint64(c.opts.Worker.ID),
		Rank:     uint32(c.opts.Worker.Rank),
		Blocks:   hexHashes(c.pool.resident()),
		Idle:     c.quiet(),
		Stats:    c.snapshotStats(),
	}
	s.Stats.DeviceResident = len(s.Blocks)
	return s
}

// snapshotStats is what was counted, and all gauges but DeviceResident.
func (c *core) snapshotStats() Stats {
	s := c.ctr.snapshot()
	s.DeviceBlocks = len(c.pool.blocks)
	s.DeviceFree = c.pool.free.n
	s.RequestsRunning = len(c.running)
	s.RequestsWaiting = len(c.waiting)
	return s
}
