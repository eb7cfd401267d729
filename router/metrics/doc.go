// Package metrics has the Prometheus metrics of a router.
//
//	m := metrics.New("v1.2.3")
//	metrics.AddStats(m, "blockyard_frontend_", door.Stats) // numbers of a snapshot struct
//	m.Door.Answered("completions", "llama", 200)           // a number with labels of the request
//	http.Handle("GET /metrics", m.Handler())
//
// Numbers without labels of a request are fields of snapshot structs beside their state. A scrape
// reads the snapshots: AddStats, AddStatsBy and AddReasons add them. Histograms, and counters with a
// label that a request sets, are live here, because no snapshot can carry them:
// docs/decisions/a-number-is-declared-once.md.
//
// Guarantees: the label worker has at most 4,096 values, and its series end 10 minutes after the
// last request to a worker that has gone. The caller passes only names of models that exist, and
// routes and reasons from fixed sets.
//
// The router owns the Metrics. All methods may be called from any goroutine. Two metrics of one
// name make a scrape fail.
package metrics
