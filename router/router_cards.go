package router

import (
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// cardTable is what the scheduler asks of workers. Its lock is a leaf: the scheduler
// asks with its own lock held, and feeds change it with theirs.
type cardTable struct {
	mu    sync.Mutex
	cards map[kv.Worker]card
}

// card is how a worker was described; card.config is the same for the scheduler.
type card struct {
	said   kvevent.ModelCard
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
	t.cards[w] = card{*c, schedule.WorkerConfig{
		TotalBlocks: c.DeviceBlocks, MaxBatchedTokens: c.MaxBatchedTokens, Taints: c.Taints.List(),
	}}
	return known
}

func (t *cardTable) remove(w kv.Worker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.cards, w)
}

// joined is called by the feeds, with their lock held, for each worker that is new,
// or whose pool or card is, before it is a member.
func (r *Router) joined(w kv.Worker, a *kvevent.Announcement) {
	// A new worker changes the list of members, which the scheduler notices itself.
	if r.cards.set(w, &a.Card) {
		r.scheduler.WorkersChanged()
	}
	if r.estimate != nil {
		r.estimate.SetWorker(w, a.Pool, a.Model)
	}
}

// left is called for each worker that is gone.
func (r *Router) left(w kv.Worker) {
	r.cards.remove(w)
	if r.estimate != nil {
		r.estimate.RemoveWorker(w)
	}
}

// heardLoad is called for each load report.
func (r *Router) heardLoad(l *kvevent.LoadReport) {
	if l.Owner.Kind == kv.OwnerWorker {
		r.scheduler.ReportUsedBlocks(l.Owner.Worker(), l.Worker.DeviceBlocksUsed)
	}
	if r.estimate != nil {
		r.estimate.Report(l)
	}
}

// watcher tells metrics and estimator of decisions.
type watcher struct{ router *Router }

var _ decide.Observer = (*watcher)(nil)

// Decided implements decide.Observer.
func (o *watcher) Decided(d *decide.Decision) {
	o.router.metrics.overhead.decided(d)
	if e := o.router.estimate; e != nil && d.Match.Booked {
		e.Booked(&estimate.Booking{ID: d.Query.ID, Worker: d.Match.Worker,
			Tokens: len(d.Query.Tokens), BlockSize: d.BlockSize, Hits: d.Match.Hits})
	}
}

// SharedCacheFailed implements decide.Observer.
func (o *watcher) SharedCacheFailed() { o.router.metrics.overhead.sharedCacheFailed() }

// PrefillCompleted implements decide.Observer.
func (o *watcher) PrefillCompleted(id string) {
	if e := o.router.estimate; e != nil {
		e.PrefillDone(id)
	}
}

// Freed implements decide.Observer.
func (o *watcher) Freed(id string) {
	if e := o.router.estimate; e != nil {
		e.Dropped(id)
	}
}
