package demo

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// recorder collects the figures of the load generator. It is safe for concurrent use.
type recorder struct {
	mu       sync.Mutex
	total    int
	finished int
	failed   int
	// firstErrors are the first failures and wrong sums.
	firstErrors []string
	// inputTokens are the tokens that were sent, served the tokens by the engines'
	// account. misserved is the number of requests for which the two differ.
	inputTokens uint64
	served      Served
	misserved   int
	// byEngine is the number of requests that each worker has answered.
	byEngine map[uint64]int
	ttft     []time.Duration
	routing  []time.Duration
}

const maxFirstErrors = 3

// routed records the time of a router's answer.
func (r *recorder) routed(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.routing = append(r.routing, d)
}

// firstToken records the time to first token, in simulated time.
func (r *recorder) firstToken(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ttft = append(r.ttft, d)
}

// succeeded records that the engine e answered request id in full. tokens is the length of the
// prompt, and s says where its KV came from. A count that does not add up to tokens is noted as
// an error.
func (r *recorder) succeeded(id string, e *engine, tokens int, s Served) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finished++
	if r.byEngine == nil {
		r.byEngine = make(map[uint64]int)
	}
	r.byEngine[e.Worker]++
	r.inputTokens += uint64(tokens)
	r.served.add(s)
	if s.sum() != uint64(tokens) {
		r.misserved++
		r.noteLocked("request %s: %s: served %+v adds up to %d, the prompt has %d tokens", id, e.Endpoint.Name, s, s.sum(), tokens)
	}
}

// fail records a request that was not answered.
func (r *recorder) fail(id string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finished++
	r.failed++
	r.noteLocked("request %s: %v", id, err)
}

func (r *recorder) noteLocked(format string, args ...any) {
	if len(r.firstErrors) < maxFirstErrors {
		r.firstErrors = append(r.firstErrors, fmt.Sprintf(format, args...))
	}
}

// progress is the state of a run under way.
type progress struct {
	finished, total, failed int
	served                  Served
}

func (r *recorder) progress() progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return progress{finished: r.finished, total: r.total, failed: r.failed, served: r.served}
}

// fillReport copies what was recorded into the report of a run: counts, and quantiles of the times.
func (r *recorder) fillReport(out *RunReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out.Requests, out.Failed, out.firstErrors = r.finished, r.failed, r.firstErrors
	out.InputTokens, out.Served, out.misserved = r.inputTokens, r.served, r.misserved
	out.ByEngine = maps.Clone(r.byEngine)
	slices.Sort(r.ttft)
	slices.Sort(r.routing)
	out.TTFT = TTFT{
		Mean: millis(mean(r.ttft)),
		P50:  millis(percentile(r.ttft, 50)),
		P99:  millis(percentile(r.ttft, 99)),
	}
	out.Routing = Routing{P50: micros(percentile(r.routing, 50)), P99: micros(percentile(r.routing, 99))}
}

// percentile returns the smallest sorted value that at least p percent of the values do
// not exceed; 0 without values.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*p + 99) / 100
	return sorted[max(rank, 1)-1]
}

// mean returns the mean of values, 0 without values.
func mean(values []time.Duration) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range values {
		sum += float64(v)
	}
	return time.Duration(sum / float64(len(values)))
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
func micros(d time.Duration) float64 { return float64(d.Nanoseconds()/100) / 10 }
