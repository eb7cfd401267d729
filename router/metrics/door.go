package metrics

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blockyard-ai/blockyard/router/miss"
)

// Door has the histograms and the labelled counters of requests that package frontend forwards. The
// package adds to them. Other numbers of the front door are in frontend.Stats. A worker is named as kv.Worker's String does.
type Door struct {
	requests   *prometheus.CounterVec
	retries    *prometheus.CounterVec
	splits     *prometheus.CounterVec
	first      *prometheus.HistogramVec
	gap        *prometheus.HistogramVec
	whole      *prometheus.HistogramVec
	phase      *prometheus.HistogramVec
	predicted  *prometheus.CounterVec
	delivered  *prometheus.CounterVec
	difference *prometheus.CounterVec
	missed     *prometheus.CounterVec
	reported   *prometheus.CounterVec
	prompts    *prometheus.CounterVec
	outputs    *prometheus.CounterVec
	workers    workerLabels
}

// newDoor returns the front door's metrics, registered with r under names that begin
// with "blockyard_frontend_".
func newDoor(r *prometheus.Registry) *Door {
	const prefix = "blockyard_frontend_"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	}
	// 1 ms to 131 s.
	seconds := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + name, Help: help,
			Buckets: prometheus.ExponentialBuckets(1e-3, 2, 18)}, []string{"model", "worker"})
	}
	m := &Door{
		requests:   counter("requests_total", "Requests answered, by route, model and HTTP status.", "route", "model", "status"),
		retries:    counter("retries_total", "Requests sent to a second worker, by the first worker and its failure: connect, died, status or answer.", "model", "worker", "reason"),
		splits:     counter("disaggregated_prefills_total", "Requests of models with prefill workers: handed over to the decode worker (yard, engines), or served whole and why.", "result"),
		first:      seconds("time_to_first_token_seconds", "Time from a request's arrival to its first token."),
		gap:        seconds("inter_token_latency_seconds", "Time between two events with tokens of one answer."),
		whole:      seconds("request_seconds", "Time from a request's arrival to the end of its answer."),
		predicted:  counter("cached_tokens_predicted_total", "Prompt tokens that the router expected in the worker's cache.", "model", "worker"),
		delivered:  counter("cached_tokens_delivered_total", "Prompt tokens that the workers reported as cached, of answers that reported it.", "model", "worker"),
		difference: counter("cached_tokens_difference_total", "Tokens by which delivered and predicted differ, by direction (less, more) and cause.", "model", "worker", "direction", "cause"),
		missed:     counter("missed_tokens_total", "Prompt tokens that workers did not report as cached, by cause.", "model", "worker", "cause"),
		prompts:    counter("prompts_total", "Prompts by how their tokens were known: exact, approximate or none.", "tokens"),
		outputs:    counter("output_tokens_total", "Tokens that workers generated, as they reported.", "model"),
	}
	m.phase = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "phase_seconds",
		Help: "Time of a request before a worker has it, by phase: tokens (of the prompt), admission, decision, and queue (the part of the decision that waited).",
		// 16 µs to 134 s.
		Buckets: prometheus.ExponentialBuckets(16e-6, 4, 13)}, []string{"model", "phase"})
	m.reported = counter("prompt_tokens_reported_total", "Prompt tokens of answers that reported cached tokens.", "model", "worker")
	r.MustRegister(m.phase, m.reported)
	r.MustRegister(m.requests, m.retries, m.splits, m.first, m.gap, m.whole,
		m.predicted, m.delivered, m.difference, m.missed, m.prompts, m.outputs)
	m.workers.of = []labelled{m.first, m.gap, m.whole, m.retries, m.predicted, m.delivered, m.difference, m.missed, m.reported}
	return m
}

// Answered counts an answer by its HTTP status.
func (m *Door) Answered(route, model string, status int) {
	m.requests.WithLabelValues(route, model, strconv.Itoa(status)).Inc()
}

// Retried counts a request for a model that goes to a second worker, by the first worker and its
// failure.
func (m *Door) Retried(model, worker, reason string) {
	m.retries.WithLabelValues(model, m.workers.label(worker), reason).Inc()
}

// Split counts a request of a model with prefill workers: by the way in which the prompt's
// blocks reached the decode worker, or by the reason why one worker served it whole.
func (m *Door) Split(result string) { m.splits.WithLabelValues(result).Inc() }

// FirstToken records the time from a request's arrival to its first token.
func (m *Door) FirstToken(model, worker string, d time.Duration) {
	m.first.WithLabelValues(model, m.workers.label(worker)).Observe(d.Seconds())
}

// Phase records the time of a request in a phase before a worker has it.
func (m *Door) Phase(model, phase string, d time.Duration) {
	m.phase.WithLabelValues(model, phase).Observe(d.Seconds())
}

// Gap returns the function that records the times between the tokens of an answer.
func (m *Door) Gap(model, worker string) func(time.Duration) {
	h := m.gap.WithLabelValues(model, m.workers.label(worker))
	return func(d time.Duration) { h.Observe(d.Seconds()) }
}

// Ended records the time from a request's arrival to the end of its answer, and the tokens
// that the worker generated; 0 is unknown.
func (m *Door) Ended(model, worker string, d time.Duration, output int) {
	m.whole.WithLabelValues(model, m.workers.label(worker)).Observe(d.Seconds())
	m.outputs.WithLabelValues(model).Add(float64(output))
}

// Prompt counts a prompt by how its tokens are known: exact, approximate or none.
func (m *Door) Prompt(known string) { m.prompts.WithLabelValues(known).Inc() }

// Cached records the tokens of a prompt, those that the router expected in the worker's cache, and
// those that the worker reported as cached.
func (m *Door) Cached(model, worker string, prompt, predicted, delivered int) {
	worker = m.workers.label(worker)
	m.reported.WithLabelValues(model, worker).Add(float64(prompt))
	m.predicted.WithLabelValues(model, worker).Add(float64(predicted))
	m.delivered.WithLabelValues(model, worker).Add(float64(delivered))
}

// Differ records by how many tokens delivered differs from predicted, below 0 when less was
// delivered, and why.
func (m *Door) Differ(model, worker string, by int, cause miss.Cause) {
	switch worker = m.workers.label(worker); {
	case by < 0:
		m.difference.WithLabelValues(model, worker, "less", cause.String()).Add(float64(-by))
	case by > 0:
		m.difference.WithLabelValues(model, worker, "more", cause.String()).Add(float64(by))
	}
}

// Missed counts prompt tokens that a worker did not report as cached, by cause.
func (m *Door) Missed(model, worker string, cause miss.Cause, tokens int) {
	m.missed.WithLabelValues(model, m.workers.label(worker), cause.String()).Add(float64(tokens))
}

const (
	// maxWorkerLabels bounds the values of the label worker. Requests to further workers count
	// under the value otherWorkers.
	maxWorkerLabels = 4096
	otherWorkers    = "other"
	// keepSeries is how long the series of a worker that has gone are kept after its last
	// request, so that a scrape sees the last values.
	keepSeries = 10 * time.Minute
)

// Forget deletes the series of workers that have gone and had no request for 10 minutes. present
// has the names of the others.
func (m *Door) Forget(present map[string]bool) { m.workers.forget(present, time.Now()) }

// labelled is a metric with the label worker.
type labelled interface {
	DeletePartialMatch(labels prometheus.Labels) int
}

// workerLabels bounds the series with a worker label: workers come and go for months. Methods may
// be called from any goroutine.
type workerLabels struct {
	of []labelled

	mu   sync.Mutex
	used map[string]time.Time // the last request, by worker
}

// label returns the label for a worker.
func (w *workerLabels) label(worker string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.used[worker]; !known && len(w.used) >= maxWorkerLabels {
		return otherWorkers
	}
	if w.used == nil {
		w.used = make(map[string]time.Time)
	}
	w.used[worker] = time.Now()
	return worker
}

// forget deletes the series of workers that have gone and had no request for keepSeries. present
// has the others.
func (w *workerLabels) forget(present map[string]bool, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for worker, last := range w.used {
		if present[worker] || now.Sub(last) < keepSeries {
			continue
		}
		delete(w.used, worker)
		for _, m := range w.of {
			m.DeletePartialMatch(prometheus.Labels{"worker": worker})
		}
	}
}
