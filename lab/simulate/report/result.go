package report

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/lab/simulate/engine"
)

// Limits say which requests count as good: the first token within TTFT, and the mean time between
// tokens within TBT.
type Limits struct{ TTFT, TBT time.Duration }

// String returns the rule of a good request.
func (l Limits) String() string {
	return fmt.Sprintf("good requests have their first token within %d ms and a mean time between tokens of at most %d ms", l.TTFT.Milliseconds(), l.TBT.Milliseconds())
}

// MarshalJSON implements json.Marshaler, in milliseconds.
func (l Limits) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `{"ttft_ms":%d,"tbt_ms":%d}`, l.TTFT.Milliseconds(), l.TBT.Milliseconds()), nil
}

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
	// Decisions are a sample of the run's decisions by price. Only the first seed has them.
	Decisions []Decision `json:"decisions,omitempty"`
	// Memberships are those in the index of each router at the end.
	Memberships []int `json:"-"`
}

// Served are prompt tokens by where they came from.
type Served struct {
	Device   int `json:"device"`
	Host     int `json:"host"`
	Disk     int `json:"disk"`
	Computed int `json:"computed"`
}

// Add adds the tokens of a request.
func (s *Served) Add(o engine.Served) {
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

// Mean returns the means of results.
func Mean(all []Result) Result {
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
			{&m.Moved.Network, r.Moved.Network},
		} {
			*f.to += f.from / n
		}
		for mode, count := range r.Modes {
			m.Modes[mode] += count
		}
	}
	return m
}
