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

// Routing is the time of a router's answer at its client, in real microseconds.
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
	// Requests is the number of requests that were sent, Failed the number of those
	// without a full answer.
	Requests int `json:"requests"`
	Failed   int `json:"failed"`
	// ElapsedS is the time the workload took, in real seconds.
	ElapsedS float64 `json:"elapsed_s"`
	// InputTokens are the tokens of answered prompts, counted at the sender. Served is
	// the engines' account of them and must add up to InputTokens.
	InputTokens uint64 `json:"input_tokens"`
	Served      Served `json:"served_tokens"`
	// ByEngine is the number of requests that each worker has answered.
	ByEngine map[uint64]int `json:"requests_by_worker"`
	// BlocksVerified is the number of loaded blocks that were compared, WrongBytes the
	// number of bytes that differed, LoadsFailed the number of blocks that were
	// recomputed after a failed load.
	BlocksVerified uint64 `json:"blocks_verified"`
	WrongBytes     uint64 `json:"wrong_bytes"`
	LoadsFailed    uint64 `json:"loads_failed"`
	// Events are the agents' counters. FramesDropped is the number of frames that
	// engines left out, Resets the number of cache resets.
	Events        EventCounts `json:"events"`
	FramesDropped uint64      `json:"frames_dropped"`
	Resets        uint64      `json:"resets"`
	// Compared is the number of (owner, block, tier) triples that router or owner knows
	// at rest. Diverged is the number of those that only one of them knows.
	Diverged int `json:"diverged"`
	Compared int `json:"compared"`
	// CreditCompared is the number of (prompt, engine) pairs of a hybrid run for which the
	// router's credit was compared with what the engine and its agent find, CreditBlocks the blocks
	// that they find, CreditStored those of them that the agent alone has.
	CreditCompared int `json:"credit_compared,omitempty"`
	CreditBlocks   int `json:"credit_blocks,omitempty"`
	CreditStored   int `json:"credit_stored,omitempty"`
	// CreditWithoutWindow are the blocks that full attention alone would find.
	CreditWithoutWindow int `json:"credit_without_window,omitempty"`
	// Promises is the number of prompts that were then sent to an engine, PromisedBlocks the blocks
	// that the router credited for them. Kills are the processes that died in between.
	Promises       int `json:"promises,omitempty"`
	PromisedBlocks int `json:"promised_blocks,omitempty"`
	Kills          int `json:"kills,omitempty"`
	// CreditDiverged is the number of pairs and prompts for which the credit differed.
	CreditDiverged int `json:"credit_diverged,omitempty"`
	// SettleMS is the time to rest after the last answer. Settled is false when the
	// cluster did not come to rest.
	SettleMS float64 `json:"settle_ms"`
	Settled  bool    `json:"settled"`

	// Unsound lists streams and feeds that were not exact in the end.
	Unsound []string `json:"unsound,omitempty"`

	Routing Routing `json:"routing_us"`
	TTFT    TTFT    `json:"ttft_ms"`

	// Unclean lists processes that did not stop well, and files that they left in
	// shared memory.
	Unclean []string `json:"unclean,omitempty"`

	// misserved is the number of requests whose Served counts do not add up to their
	// prompts. firstErrors, divergence and unsettled explain Failed, Diverged and
	// Settled.
	misserved   int
	firstErrors []string
	divergence  []string
	unsettled   string
}

// Report is the result of Run, and its JSON. The figures at the top level are those of
// the run "ours".
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

// SelftestReport is the result of Selftest, and its JSON.
type SelftestReport struct {
	// HostFlipped is the number of bytes flipped in host memory, each in its own block.
	// WrongBytes is the number of wrong bytes that the engine found; it must be equal.
	HostFlipped int    `json:"host_flipped"`
	WrongBytes  uint64 `json:"wrong_bytes"`
	// DiskFlipped is the number of bytes flipped on disk, each in its own block.
	// DiskWrongBytes is the number of them that the engine got; it must be 0. Misses is
	// the number of blocks computed again; it must equal DiskFlipped.
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
