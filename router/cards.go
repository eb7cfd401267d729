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

// of returns the configuration of a worker, a zero value for an unknown worker.
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

// place returns the endpoint and the number of ranks that a worker announces.
func (t *cardTable) place(w kv.Worker) (endpoint string, ranks int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.cards[w].announced
	return c.Endpoint, max(1, int(c.Ranks))
}

// set stores a worker's announced card. It reports whether the worker had another card.
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

func newCard(c *kvevent.ModelCard, blocks uint64) card {
	return card{*c, blocks, schedule.WorkerConfig{
		TotalBlocks: cmp.Or(c.DeviceBlocks, blocks), MaxBatchedTokens: c.MaxBatchedTokens, Taints: c.Taints.List(),
	}}
}

// setReported stores the capacity of a load report, in blocks. It ignores 0.
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

// takeCapacityChanged returns and clears capacityChanged.
func (t *cardTable) takeCapacityChanged() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	measured := t.capacityChanged
	t.capacityChanged = false
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
			Tokens: d.Query.Len(), BlockSize: d.BlockSize, Hits: d.Match.Hits,
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
		e.Booked(&estimate.Booking{ID: q.ID, Worker: w, Tokens: q.Len(), BlockSize: blockSize,
			Hits: index.Hits{kv.TierDevice: uint32(cached)}})
	}
}
