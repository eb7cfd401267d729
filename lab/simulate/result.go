package simulate

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
)

// Result has the numbers of one run. They cover the requests that began after the warm-up and within
// the duration. Preempted, Herd, Balance, Moved and Modes cover the run, which ends with the last of them.
type Result struct {
	Requests   int `json:"requests"`
	Unfinished int `json:"unfinished"`
	Failed     int `json:"failed"`
	Preempted  int `json:"preempted"`
	// Times in milliseconds: to the first token of a request, and between two tokens.
	TTFTMean float64 `json:"ttft_mean_ms"`
	TTFTP99  float64 `json:"ttft_p99_ms"`
	TBTMean  float64 `json:"tbt_mean_ms"`
	TBTP99   float64 `json:"tbt_p99_ms"`
	// Goodput is requests within the limits, and TokensPerSecond prompt tokens and answered tokens, per
	// second.
	Goodput         float64 `json:"goodput"`
	TokensPerSecond float64 `json:"tokens_per_second"`
	ServedTokens    int     `json:"-"`
	// Served are the prompt tokens by tier. InfiniteShare is what an infinite cache would serve.
	Served        Served  `json:"served"`
	InfiniteShare float64 `json:"infinite_cache_share"`
	// Herd is the largest and Balance the smallest time-weighted backlog of a worker, in
	// seconds of work left, over the fair one.
	Herd    float64        `json:"herd"`
	Balance float64        `json:"balance"`
	Moved   engine.Moved   `json:"moved_bytes"`
	Modes   map[string]int `json:"modes"`
}

// Served are prompt tokens by where they came from.
type Served struct {
	Device   int `json:"device"`
	Host     int `json:"host"`
	Disk     int `json:"disk"`
	Computed int `json:"computed"`
}

func (s *Served) add(o engine.Served) {
	s.Device += o.Device
	s.Host += o.Host
	s.Disk += o.Disk
	s.Computed += o.Computed
}

// Cached returns the share of the prompt tokens that were not computed.
func (s *Served) Cached() float64 {
	cached := s.Device + s.Host + s.Disk
	return float64(cached) / float64(max(1, cached+s.Computed))
}

// percent returns the per cent of the prompt tokens that came from each tier.
func (s *Served) percent() (device, host, disk float64) {
	all := float64(max(1, s.Device+s.Host+s.Disk+s.Computed)) / 100
	return float64(s.Device) / all, float64(s.Host) / all, float64(s.Disk) / all
}

// mean returns the means of results.
func mean(all []Result) Result {
	var m Result
	n := float64(len(all))
	m.Modes = make(map[string]int)
	for i := range all {
		r := &all[i]
		m.Requests += r.Requests
		m.Unfinished += r.Unfinished
		m.Failed += r.Failed
		m.Preempted += r.Preempted
		m.Served.Device += r.Served.Device
		m.Served.Host += r.Served.Host
		m.Served.Disk += r.Served.Disk
		m.Served.Computed += r.Served.Computed
		for _, f := range []struct {
			to   *float64
			from float64
		}{
			{&m.TTFTMean, r.TTFTMean}, {&m.TTFTP99, r.TTFTP99}, {&m.TBTMean, r.TBTMean}, {&m.TBTP99, r.TBTP99}, {&m.Goodput, r.Goodput},
			{&m.TokensPerSecond, r.TokensPerSecond}, {&m.InfiniteShare, r.InfiniteShare}, {&m.Herd, r.Herd}, {&m.Balance, r.Balance},
			{&m.Moved.DiskRead, r.Moved.DiskRead}, {&m.Moved.DiskWritten, r.Moved.DiskWritten},
			{&m.Moved.HostToDevice, r.Moved.HostToDevice}, {&m.Moved.DeviceToHost, r.Moved.DeviceToHost},
		} {
			*f.to += f.from / n
		}
		for mode, count := range r.Modes {
			m.Modes[mode] += count
		}
	}
	return m
}

// histogram counts durations in buckets of 1 %. The zero value is empty.
type histogram struct {
	counts [bucketCount]uint32
	n      uint64
	sum    float64 // seconds
	// last is the bucket of lastAdded: requests of one step have the same gap.
	last      int
	lastAdded time.Duration
}

const (
	bucketCount  = 1900
	bucketFactor = 1.01
	shortest     = 10 * time.Microsecond
)

var bucketLog = math.Log(bucketFactor)

func (h *histogram) add(d time.Duration) {
	if d != h.lastAdded {
		h.last, h.lastAdded = 0, d
		if d > shortest {
			h.last = min(bucketCount-1, int(math.Log(float64(d)/float64(shortest))/bucketLog))
		}
	}
	h.counts[h.last]++
	h.n++
	h.sum += d.Seconds()
}

// mean returns the mean in milliseconds, 0 without durations.
func (h *histogram) mean() float64 {
	if h.n == 0 {
		return 0
	}
	return 1e3 * h.sum / float64(h.n)
}

// quantile returns a quantile in milliseconds, to 1 %.
func (h *histogram) quantile(q float64) float64 {
	want, sum := uint64(math.Ceil(q*float64(h.n))), uint64(0)
	for i, c := range h.counts {
		if sum += uint64(c); sum >= want && c > 0 {
			return float64(shortest) / 1e6 * math.Pow(bucketFactor, float64(i)+0.5)
		}
	}
	return 0
}

// herd measures how uneven the backlogs of the workers are.
type herd struct {
	// sums are the integrals of the backlogs of the workers, in seconds of work left over the mean of all
	// workers, while at least 4 requests run per worker.
	sums    []float64
	samples int
}

// sample adds the present backlogs. A worker that has left does not count.
func (h *herd) sample(c *cluster) {
	n, requests, work := len(c.list), 0, 0.0
	for _, e := range c.list {
		requests += e.Running() + e.Waiting()
		work += e.Work()
	}
	if n == 0 || requests < 4*n || work == 0 {
		return
	}
	for len(h.sums) < n {
		h.sums = append(h.sums, 0)
	}
	for i, e := range c.list {
		h.sums[i] += e.Work() / (work / float64(n))
	}
	h.samples++
}

// worst returns the largest mean backlog of a worker over the fair one, 0 without samples.
func (h *herd) worst() float64 {
	if h.samples == 0 {
		return 0
	}
	return slices.MaxFunc(h.sums, cmp.Compare[float64]) / float64(h.samples)
}

// balance returns the mean backlog of the least loaded worker over the fair one.
func (h *herd) balance() float64 {
	if h.samples == 0 {
		return 0
	}
	return slices.MinFunc(h.sums, cmp.Compare[float64]) / float64(h.samples)
}
