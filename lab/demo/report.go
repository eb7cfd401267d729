package demo

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/blockyard-ai/blockyard/lab/cluster"
)

// TTFT is the time from when a request was due to its first token, in simulated
// milliseconds.
type TTFT struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
}

// Routing is how long the router took to answer, in real microseconds as its
// client saw it.
type Routing struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// EventCounts are the agents' counters of engine and router events.
type EventCounts cluster.EventCounts

func (e *EventCounts) add(o EventCounts) {
	e.In += o.In
	e.Out += o.Out
	e.Gaps += o.Gaps
	e.Repaired += o.Repaired
	e.Lost += o.Lost
}

// RunReport holds the figures of one run.
type RunReport struct {
	// Requests were sent, and Failed of them not answered in full.
	Requests int `json:"requests"`
	Failed   int `json:"failed"`
	// ElapsedS is the time the workload took, in real seconds.
	ElapsedS float64 `json:"elapsed_s"`
	// InputTokens are those of the prompts that were sent and answered, counted
	// where they were sent; Served is where the engines say that their KV came
	// from, and must add up to them.
	InputTokens uint64 `json:"input_tokens"`
	Served      Served `json:"served_tokens"`
	// ByEngine is the number of requests that each worker has answered.
	ByEngine map[uint64]int `json:"requests_by_worker"`
	// BlocksVerified blocks were compared byte by byte after a load, and
	// WrongBytes bytes were not what they had to be. LoadsFailed blocks were
	// recomputed because they could not be loaded.
	BlocksVerified uint64 `json:"blocks_verified"`
	WrongBytes     uint64 `json:"wrong_bytes"`
	LoadsFailed    uint64 `json:"loads_failed"`
	// Events are counted by the agents; FramesDropped engine frames were left out
	// on purpose, and Resets times an engine's cache was reset.
	Events        EventCounts `json:"events"`
	FramesDropped uint64      `json:"frames_dropped"`
	Resets        uint64      `json:"resets"`
	// Diverged counts (owner, block, tier) triples that only one of router and
	// owner knows, after everything had come to rest; Compared are all of them.
	Diverged int `json:"diverged"`
	Compared int `json:"compared"`
	// SettleMS is how long that took after the last answer, and Settled false if
	// it did not happen.
	SettleMS float64 `json:"settle_ms"`
	Settled  bool    `json:"settled"`

	// Unsound lists streams and feeds that were not exact in the end.
	Unsound []string `json:"unsound,omitempty"`

	Routing Routing `json:"routing_us"`
	TTFT    TTFT    `json:"ttft_ms"`

	// Unclean lists children that did not end well when stopped, and files that
	// they left in shared memory.
	Unclean []string `json:"unclean,omitempty"`

	// misserved requests have Served counts that do not add up to their prompts.
	// firstErrors, divergence and unsettled explain it, Failed, Diverged and
	// Settled.
	misserved   int
	firstErrors []string
	divergence  []string
	unsettled   string
}

// Report is what Run found, and what it writes as JSON. The figures at the top
// level are those of the run "ours".
type Report struct {
	RunReport
	// RoundRobin and NoOffload are absent if only ours was run.
	RoundRobin *RunReport `json:"round_robin,omitempty"`
	NoOffload  *RunReport `json:"no_offload,omitempty"`

	Workload string  `json:"workload"`
	Seed     uint64  `json:"seed"`
	SpeedUp  float64 `json:"speed_up"`
	Nodes    int     `json:"nodes"`
	Engines  int     `json:"engines"`
	// Passed says that no check failed; Reasons are those that did. Notes are tiers
	// that a trace never needed.
	Passed  bool     `json:"passed"`
	Reasons []string `json:"reasons"`
	Notes   []string `json:"notes,omitempty"`
}

// SelftestReport is what Selftest found, and what it writes as JSON.
type SelftestReport struct {
	// HostFlipped bytes were flipped in host memory, each in a block of its own,
	// and WrongBytes bytes found wrong by the engine: as many.
	HostFlipped int    `json:"host_flipped"`
	WrongBytes  uint64 `json:"wrong_bytes"`
	// DiskFlipped bytes were flipped on disk, each in a block of its own;
	// DiskWrongBytes of them reached the engine: none. Misses blocks were computed
	// again instead: as many as were flipped.
	DiskFlipped    int    `json:"disk_flipped"`
	DiskWrongBytes uint64 `json:"disk_wrong_bytes"`
	Misses         uint64 `json:"misses"`
	// Passed says that no check failed; Reasons are those that did.
	Passed  bool     `json:"passed"`
	Reasons []string `json:"reasons"`
}

// writeReport writes r, a *Report or *SelftestReport, to path as indented JSON.
func writeReport(path string, r any) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("--report: %w", err)
	}
	return nil
}
