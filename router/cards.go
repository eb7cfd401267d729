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

// cardTable is what the scheduler asks of workers. Its lock is a leaf: the scheduler
// asks with its own lock held, and feeds change it with theirs.
type cardTable struct {
	mu    sync.Mutex
	cards map[kv.Worker]card
	// measured says that a capacity was reported that the scheduler was not told of.
	measured bool
}

// card is how a worker was described; card.config is the same for the scheduler. blocks
// is what the worker last reported as its device's capacity, 0 for nothing: it stands in
// where the card has none.
type card struct {
	said   kvevent.ModelCard
	blocks uint64
	config schedule.WorkerConfig
}

func newCardTable() *cardTable { return &cardTable{cards: make(map[kv.Worker]card)} }

// of describes a worker; of one that is not known there is nothing to say.
func (t *cardTable) of(w kv.Worker) schedule.WorkerConfig {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cards[w].config
}

// set describes a worker and reports whether it was known by another description.
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

// reported notes the capacity that a load report has; 0 says nothing.
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

// takeMeasured reports, once, whether the scheduler has to ask anew for what was reported.
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

// watcher tells metrics and estimator of decisions.
type watcher struct{ model *Model }

var _ decide.Observer = (*watcher)(nil)

// Decided implements decide.Observer.
func (o *watcher) Decided(d *decide.Decision) {
	o.model.metrics.overhead.decided(d)
	if e := o.model.estimate; e != nil && d.Match.Booked {
		e.Booked(&estimate.Booking{ID: d.Query.ID, Worker: d.Match.Worker,
			Tokens: len(d.Query.Tokens), BlockSize: d.BlockSize, Hits: d.Match.Hits,
			Untracked: !o.model.config.TrackPrefillTokens(d.Query.Override)})
	}
}

// SharedCacheFailed implements decide.Observer.
func (o *watcher) SharedCacheFailed() { o.model.metrics.overhead.sharedCacheFailed() }

// PrefillCompleted implements decide.Observer.
func (o *watcher) PrefillCompleted(id string) {
	if e := o.model.estimate; e != nil {
		e.PrefillDone(id)
	}
}

// Freed implements decide.Observer.
func (o *watcher) Freed(id string) {
	if e := o.model.estimate; e != nil {
		e.Dropped(id)
	}
}

// Added implements decide.Observer. What is cached is taken to be on the device, as
// nothing is said of where.
func (o *watcher) Added(q *decide.Query, w kv.Worker, blockSize, cached int) {
	if e := o.model.estimate; e != nil {
		e.Booked(&estimate.Booking{ID: q.ID, Worker: w, Tokens: len(q.Tokens), BlockSize: blockSize,
			Hits: index.Hits{kv.TierDevice: uint32(cached)}})
	}
}
