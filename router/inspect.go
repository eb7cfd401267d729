package router

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/console"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/decisions"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/miss"
	"github.com/blockyard-ai/blockyard/router/remote"
	"github.com/blockyard-ai/blockyard/router/replica"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Workers returns the workers that may get requests, in order.
func (r *Router) Workers() []feed.Worker { return r.feeds.Workers() }

// Feeds returns the state of each publisher's feed, ordered by owner.
func (r *Router) Feeds() []feed.State { return r.feeds.States() }

// Loads returns the last load report of each worker and pool, at most a minute old.
func (r *Router) Loads() map[kv.Owner]feed.Load { return r.feeds.Loads(time.Now()) }

// Measures returns the measures of each worker; nil without prices.
func (r *Router) Measures() (all []estimate.WorkerMeasures) {
	for _, m := range r.models.all() {
		if m.estimate != nil {
			all = append(all, m.estimate.Measures()...)
		}
	}
	return all
}

// Quality returns the worst quality of all models with workers.
func (r *Router) Quality() feed.Quality { return r.models.quality() }

// Stats are the gauges and counters of all parts. Index, Requests, Guess, Estimate and
// Unremembered are sums over all models, including retired ones.
type Stats struct {
	Workers   int `metric:"workers" help:"Workers that may get requests."`
	Index     index.Stats
	Requests  schedule.Stats
	Models    []ModelStats
	Feeds     feed.Stats
	Loads     feed.LoadStats
	Transport source.Stats
	Snapshots feed.SnapshotStats
	// Memory is zero when no misses are explained.
	Memory miss.Stats
	Misses miss.LogStats
	// Replicas is zero without router_replica_sync.
	Replicas  replica.Stats
	ReadAhead ReadAheadStats
	// Remote is zero without use_remote_indexer, Served without serve_indexer.
	Remote remote.ClientStats
	Served remote.ServerStats

	// Guess is zero without predictions, Estimate without prices.
	Guess    approx.Stats   `metric:"-"`
	Estimate estimate.Stats `metric:"-"`
	// Unremembered counts decisions that could not be recorded as predictions.
	Unremembered uint64 `metric:"-"`
}

// Stats returns the gauges and counters.
func (r *Router) Stats() Stats {
	models, sum := r.models.stats()
	sum.Requests.Unbooked += sum.Unbooked
	s := Stats{
		Misses:  r.models.misses.Stats(),
		Workers: sum.Workers, Index: sum.Index, Requests: sum.Requests, Models: models,
		Guess: sum.Guess, Estimate: sum.Estimate, Unremembered: sum.Unremembered,
		Feeds:     r.feeds.Stats(),
		Loads:     r.feeds.LoadStats(),
		Transport: r.transport.Stats(),
		Snapshots: r.snapshots.Stats(),
		ReadAhead: r.hints.stats(),
	}
	if m := r.models.memory; m != nil {
		s.Memory = m.Stats()
	}
	if r.replicas != nil {
		s.Replicas = r.replicas.Stats()
	}
	if r.remote != nil {
		s.Remote = r.remote.Stats()
	}
	if served := r.served.Load(); served != nil {
		s.Served = served.Stats()
	}
	return s
}

// Misses returns the log of explained misses. It is empty when no misses are explained.
func (r *Router) Misses() *miss.Log { return &r.models.misses }

// ExplainsMisses reports whether the router keeps what it needs to explain misses.
func (r *Router) ExplainsMisses() bool { return r.models.memory != nil }

// Ready returns nil if the router can route a request, else the reason. A router with a
// disconnected source is ready: its answers are feed.Degraded.
func (r *Router) Ready() error {
	if slices.ContainsFunc(r.models.all(), (*Model).hasWorkers) {
		return r.Started()
	}
	if !r.transport.Stats().Connected {
		return fmt.Errorf("not connected to the event transport: %w", ErrNoWorkers)
	}
	return ErrNoWorkers
}

// Sources returns the transports' own metrics, if there are any.
func (r *Router) Sources() []source.Metrics {
	if measured, ok := r.transport.(source.Measured); ok {
		return measured.Metrics()
	}
	return nil
}

// Decisions returns the log of the last decisions.
func (r *Router) Decisions() *decisions.Log { return &r.models.decisions }

// History returns the numbers of the last minutes.
func (r *Router) History() *console.History { return r.history }

// newHistory returns a history of the router's numbers. Names with the same beginning are shown
// together: hit_tokens by tier, missed_tokens by cause.
func (r *Router) newHistory() *console.History {
	return console.NewHistory(func() []console.Value {
		costs := make(map[kv.Worker]decisions.Cost)
		for _, m := range r.Measures() {
			c := decisions.Cost{Pair: m.PairSeconds / 1e6}
			if speed := m.PrefillTokens.PerSecond; speed > 0 {
				c.Token = 1 / speed
			}
			costs[m.Worker] = c
		}
		sums, stats, feeds := r.Decisions().Value(costs), r.Stats(), r.Feeds()
		var lag, exact uint64
		for i := range feeds {
			lag += feeds[i].Announced - min(feeds[i].Announced, feeds[i].Cursor)
			if feeds[i].Health == kvevent.HealthExact {
				exact++
			}
		}
		all := []console.Value{
			{Name: "decisions", Number: float64(sums.Decisions)},
			{Name: "prompt_tokens", Number: float64(sums.PromptTokens)},
			{Name: "saved_seconds", Number: sums.SavedSeconds},
			{Name: "unvalued_tokens", Number: float64(sums.UnvaluedTokens)},
			{Name: "active_requests", Number: float64(stats.Requests.Load.Requests)},
			{Name: "waiting_requests", Number: float64(stats.Requests.Queue.Pending)},
			{Name: "event_lag", Number: float64(lag)},
			{Name: "feeds", Number: float64(len(feeds))},
			{Name: "feeds_exact", Number: float64(exact)},
			{Name: "workers", Number: float64(stats.Workers)},
		}
		for _, t := range kv.Tiers {
			all = append(all, console.Value{Name: "hit_tokens_" + t.String(), Number: float64(sums.HitTokens[t])})
		}
		missed := r.Misses().Tokens()
		for _, cause := range slices.Sorted(maps.Keys(missed)) {
			all = append(all, console.Value{Name: "missed_tokens_" + cause, Number: float64(missed[cause])})
		}
		return all
	})
}
