package router

import (
	"fmt"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Workers are the workers that requests may be sent to, in order.
func (r *Router) Workers() []feed.Worker { return r.feeds.Workers() }

// Feeds are the publishers that the router listens to, ordered by owner.
func (r *Router) Feeds() []feed.State { return r.feeds.States() }

// Loads are the last load reports of workers and pools; those that are older than a
// minute are left out.
func (r *Router) Loads() map[kv.Owner]feed.Load { return r.feeds.Loads(time.Now()) }

// Measures are what the estimators have learned of each worker; nil unless workers are
// scored by cost.
func (r *Router) Measures() (all []estimate.WorkerMeasures) {
	for _, m := range r.models.all() {
		if m.estimate != nil {
			all = append(all, m.estimate.Measures()...)
		}
	}
	return all
}

// Quality is the quality of a decision made now, for the model with the worst knowledge.
func (r *Router) Quality() feed.Quality { return r.models.quality() }

// Stats are the counters of all parts. Index and Requests are sums over the models,
// retired ones included.
type Stats struct {
	Workers   int
	Index     index.Stats
	Requests  schedule.Stats
	Models    []ModelStats
	Feeds     feed.Stats
	Loads     feed.LoadStats
	Transport source.Stats
	Snapshots feed.SnapshotStats
}

// Stats is a snapshot of the counters.
func (r *Router) Stats() Stats {
	all, sum := r.models.stats()
	return r.statsOf(all, &sum)
}

func (r *Router) statsOf(all []ModelStats, sum *ModelStats) Stats {
	return Stats{
		Workers:   sum.Workers,
		Index:     sum.Index,
		Requests:  sum.Requests,
		Models:    all,
		Feeds:     r.feeds.Stats(),
		Loads:     r.feeds.LoadStats(),
		Transport: r.transport.Stats(),
		Snapshots: r.snapshots.Stats(),
	}
}

// Ready reports why the router cannot route a request: it knows no worker, or initial
// workers are missing. It is nil when it can, also while a source is away: requests are
// routed by what was known then, and their answers say QualityDegraded.
func (r *Router) Ready() error {
	// Also workers that nobody announced; see decide.Router.RegisterWorkers.
	if slices.ContainsFunc(r.models.all(), (*Model).hasWorkers) {
		return r.Started()
	}
	if !r.transport.Stats().Connected {
		return fmt.Errorf("not connected to the event transport: %w", ErrNoWorkers)
	}
	return ErrNoWorkers
}

// Sources are the transports' own counters, none when no transport has any.
func (r *Router) Sources() []source.Metrics {
	if counting, ok := r.transport.(source.Measured); ok {
		return counting.Metrics()
	}
	return nil
}
