package router

import (
	"cmp"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// cardTable has the workers' cards for the scheduler. Its lock is a leaf: the scheduler reads
// cards under its own lock.
type cardTable struct {
	mu    sync.Mutex
	cards map[kv.Worker]card
	// capacityChanged is true when the scheduler has not read a reported capacity yet.
	capacityChanged bool
}

// card is a worker's announced card with the last reported capacity of its device, in blocks,
// 0 for none. config uses the reported capacity when the announced card has none.
type card struct {
	announced      kvevent.ModelCard
	reportedBlocks uint64
	config         schedule.WorkerConfig
}

func newCardTable() *cardTable { return &cardTable{cards: make(map[kv.Worker]card)} }

// of returns what the scheduler needs to know of a worker: capacity, batch size and taints.
// It returns a zero value for an unknown worker.
func (t *cardTable) of(w kv.Worker) schedule.WorkerConfig {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cards[w].config
}

// silent reports whether a worker is known to publish no events.
func (t *cardTable) silent(w kv.Worker) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cards[w].announced.Silent
}

// place returns the URL of the server that a worker announces, empty for none, and the
// number of its data-parallel ranks, at least 1.
func (t *cardTable) place(w kv.Worker) (endpoint string, ranks int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.cards[w].announced
	return c.Endpoint, max(1, int(c.Ranks))
}

// set stores the card that a worker announces. changed is true when the worker had another
// card: the scheduler must then read the cards again. It reads a new worker's card anyway.
func (t *cardTable) set(w kv.Worker, c *kvevent.ModelCard) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, known := t.cards[w]
	if known && before.announced == *c {
		return false
	}
	t.cards[w] = newCard(c, before.reportedBlocks)
	return known
}

// newCard returns a card for an announced one. reported is the device capacity of the last
// load report in blocks, which counts if the announced card has none.
func newCard(c *kvevent.ModelCard, reported uint64) card {
	return card{*c, reported, schedule.WorkerConfig{
		TotalBlocks: cmp.Or(c.DeviceBlocks, reported), MaxBatchedTokens: c.MaxBatchedTokens, Taints: c.Taints.List(),
	}}
}

// setReported stores the device capacity of a worker's load report, in blocks. It ignores 0
// and unknown workers. Model.tick passes a change on to the scheduler.
func (t *cardTable) setReported(w kv.Worker, blocks uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, known := t.cards[w]
	if !known || blocks == 0 || c.reportedBlocks == blocks {
		return
	}
	t.capacityChanged = t.capacityChanged || c.announced.DeviceBlocks == 0
	t.cards[w] = newCard(&c.announced, blocks)
}

// takeCapacityChanged reports whether a reported capacity has changed a worker's
// configuration since the last call.
func (t *cardTable) takeCapacityChanged() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := t.capacityChanged
	t.capacityChanged = false
	return changed
}

// remove removes the card of a worker that left.
func (t *cardTable) remove(w kv.Worker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.cards, w)
}

// decisionObserver passes decisions to metrics and the estimator.
type decisionObserver struct{ model *Model }

var _ decide.Observer = (*decisionObserver)(nil)

// Decided implements decide.Observer. It counts the decision, and lets the estimator follow
// a booked request until its first token. The agent of the worker gets a hint.
func (o *decisionObserver) Decided(d *decide.Decision) {
	o.model.metrics.Overhead.Decided(d)
	o.model.hints.decided(d)
	if e := o.model.estimate; e != nil && d.Match.Booked {
		e.Booked(&estimate.Booking{ID: d.Query.ID, Worker: d.Match.Worker,
			Tokens: d.Query.Len(), BlockSize: d.BlockSize, Hits: d.Match.Expected(),
			Untracked: !o.model.config.TrackPrefillTokens(d.Query.Override), ExpectedOutput: d.Query.ExpectedOutput, HandedOver: d.Query.HandedOver})
	}
}

// SharedCacheFailed implements decide.Observer.
func (o *decisionObserver) SharedCacheFailed() { o.model.metrics.Overhead.SharedCacheFailed() }

// PrefillCompleted implements decide.Observer.
func (o *decisionObserver) PrefillCompleted(id string) {
	if e := o.model.estimate; e != nil {
		e.PrefillDone(id)
	}
}

// OutputBlock implements decide.Observer.
func (o *decisionObserver) OutputBlock(id string) {
	if e := o.model.estimate; e != nil {
		e.OutputBlock(id)
	}
}

// Freed implements decide.Observer.
func (o *decisionObserver) Freed(id string) {
	if e := o.model.estimate; e != nil {
		e.Dropped(id)
	}
}

// Added implements decide.Observer. It lets the estimator follow a request that the caller
// sent to a worker of its own choice. The cached blocks count as device blocks, because the
// caller does not say which tier has them.
func (o *decisionObserver) Added(q *decide.Query, w kv.Worker, blockSize, cached int) {
	if e := o.model.estimate; e != nil {
		e.Booked(&estimate.Booking{ID: q.ID, Worker: w, Tokens: q.Len(), BlockSize: blockSize,
			Hits: index.Hits{kv.TierDevice: uint32(cached)}})
	}
}
