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

// cardTable holds the workers' cards for the scheduler. Its lock is a leaf: the scheduler
// reads cards with its own lock held.
type cardTable struct {
	mu    sync.Mutex
	cards map[kv.Worker]card
	// measured is true when a reported capacity is new to the scheduler.
	measured bool
}

// card is what is known of a worker: its announced card, the capacity of its device in
// blocks as last reported (0 for none), and config, the same for the scheduler. The
// reported capacity is used when the card has none.
type card struct {
	said   kvevent.ModelCard
	blocks uint64
	config schedule.WorkerConfig
}

func newCardTable() *cardTable { return &cardTable{cards: make(map[kv.Worker]card)} }

// of returns the configuration of a worker; a zero value for an unknown one.
func (t *cardTable) of(w kv.Worker) schedule.WorkerConfig {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cards[w].config
}

// set stores a worker's card. It reports whether the worker was known with another card.
func (t *cardTable) set(w kv.Worker, c *kvevent.ModelCard) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, known := t.cards[w]
	if known && before.said == *c {
		return false
	}
	t.cards[w] = newCard(c, before.blocks)
	return known
}

func newCard(c *kvevent.ModelCard, blocks uint64) card {
	return card{*c, blocks, schedule.WorkerConfig{
		TotalBlocks: cmp.Or(c.DeviceBlocks, blocks), MaxBatchedTokens: c.MaxBatchedTokens, Taints: c.Taints.List(),
	}}
}

// reported stores the capacity of a load report; 0 is ignored.
func (t *cardTable) reported(w kv.Worker, blocks uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, known := t.cards[w]
	if !known || blocks == 0 || c.blocks == blocks {
		return
	}
	t.measured = t.measured || c.said.DeviceBlocks == 0
	t.cards[w] = newCard(&c.said, blocks)
}

// takeMeasured reports once whether the scheduler must read the cards again.
func (t *cardTable) takeMeasured() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	measured := t.measured
	t.measured = false
	return measured
}

func (t *cardTable) remove(w kv.Worker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.cards, w)
}

// decisionObserver passes decisions to metrics and the estimator.
type decisionObserver struct{ model *Model }

var _ decide.Observer = (*decisionObserver)(nil)

// Decided implements decide.Observer.
func (o *decisionObserver) Decided(d *decide.Decision) {
	o.model.metrics.overhead.decided(d)
	if e := o.model.estimate; e != nil && d.Match.Booked {
		e.Booked(&estimate.Booking{ID: d.Query.ID, Worker: d.Match.Worker,
			Tokens: len(d.Query.Tokens), BlockSize: d.BlockSize, Hits: d.Match.Hits,
			Untracked: !o.model.config.TrackPrefillTokens(d.Query.Override)})
	}
}

// SharedCacheFailed implements decide.Observer.
func (o *decisionObserver) SharedCacheFailed() { o.model.metrics.overhead.sharedCacheFailed() }

// PrefillCompleted implements decide.Observer.
func (o *decisionObserver) PrefillCompleted(id string) {
	if e := o.model.estimate; e != nil {
		e.PrefillDone(id)
	}
}

// Freed implements decide.Observer.
func (o *decisionObserver) Freed(id string) {
	if e := o.model.estimate; e != nil {
		e.Dropped(id)
	}
}

// Added implements decide.Observer. Cached tokens count as device blocks, because the
// caller does not say which tier has them.
func (o *decisionObserver) Added(q *decide.Query, w kv.Worker, blockSize, cached int) {
	if e := o.model.estimate; e != nil {
		e.Booked(&estimate.Booking{ID: q.ID, Worker: w, Tokens: len(q.Tokens), BlockSize: blockSize,
			Hits: index.Hits{kv.TierDevice: uint32(cached)}})
	}
}
