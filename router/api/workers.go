package api

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/estimate"
	"github.com/blockyard-ai/blockyard/router/feed"
)

// workerAnswer is one worker in GET /v1/workers.
type workerAnswer struct {
	WorkerID  uint64       `json:"worker_id"`
	DPRank    uint32       `json:"dp_rank"`
	Pool      uint64       `json:"pool"`
	Namespace string       `json:"namespace"`
	Model     string       `json:"model"`
	BlockSize uint32       `json:"block_size"`
	Quality   feed.Quality `json:"quality"`
	// Source says where the worker comes from: "agent", "file", "http", "dynamo" or "zmq".
	Source string `json:"source"`
	// Silent is true for a worker without events.
	Silent       bool   `json:"silent,omitempty"`
	Endpoint     string `json:"endpoint,omitempty"`
	Ranks        uint32 `json:"ranks,omitempty"`
	DeviceBlocks uint64 `json:"device_blocks,omitempty"`
	// MaxBatchedTokens is the most tokens that the worker computes in one step. Taints are
	// its labels.
	MaxBatchedTokens uint64          `json:"max_num_batched_tokens,omitempty"`
	Taints           []string        `json:"taints,omitempty"`
	Load             *workerLoadJSON `json:"load,omitempty"`
	PoolLoad         *poolLoadJSON   `json:"pool_load,omitempty"`
	// Measured has the worker's measures with prices.
	Measured *estimate.WorkerMeasures `json:"measured,omitempty"`
}

// workerLoadJSON is the last load report of a worker.
type workerLoadJSON struct {
	AgeSeconds        float64 `json:"age_seconds"`
	DeviceBlocksTotal uint64  `json:"device_blocks_total"`
	DeviceBlocksUsed  uint64  `json:"device_blocks_used"`
	Running           uint64  `json:"running_requests"`
	Waiting           uint64  `json:"waiting_requests"`
}

// poolLoadJSON is the last load report of a worker's pool.
type poolLoadJSON struct {
	AgeSeconds          float64 `json:"age_seconds"`
	HostBytesTotal      uint64  `json:"host_bytes_total"`
	HostBytesUsed       uint64  `json:"host_bytes_used"`
	DiskBytesTotal      uint64  `json:"disk_bytes_total"`
	DiskBytesUsed       uint64  `json:"disk_bytes_used"`
	ReadBytesPerSecond  uint64  `json:"read_bytes_per_second"`
	WriteBytesPerSecond uint64  `json:"write_bytes_per_second"`
	ReadQueue           uint64  `json:"read_queue"`
	WriteQueue          uint64  `json:"write_queue"`
	PromoteMicros       uint64  `json:"promote_micros"`
}

// workers answers GET /v1/workers: every rank of every worker, with its model card, and the last
// load reports of the worker and of its pool.
func (a *API) workers(w http.ResponseWriter, _ *http.Request) {
	loads, now := a.router.Loads(), time.Now()
	measured := make(map[kv.Worker]*estimate.WorkerMeasures)
	for _, m := range a.router.Measures() {
		measured[m.Worker] = &m
	}
	out := []workerAnswer{}
	for _, i := range a.router.Workers() { // one entry for each rank
		answer := workerAnswer{
			WorkerID: uint64(i.Worker.ID), DPRank: uint32(i.Worker.Rank), Pool: i.Pool,
			Namespace: i.Namespace.String(), Model: i.Model, BlockSize: i.BlockSize, Quality: i.Quality,
			Source: i.Card.Source, Silent: i.Card.Silent, Endpoint: i.Card.Endpoint, Ranks: i.Card.Ranks,
			DeviceBlocks: i.Card.DeviceBlocks, MaxBatchedTokens: i.Card.MaxBatchedTokens, Taints: i.Card.Taints.List(), Measured: measured[i.Worker],
		}
		answer.Source = cmp.Or(answer.Source, "agent")
		if l, ok := loads[kv.WorkerOwner(i.Worker)]; ok {
			answer.Load = workerLoad(&l, now)
		}
		if l, ok := loads[kv.PoolOwner(i.Pool)]; ok && i.Pool != 0 {
			answer.PoolLoad = poolLoad(&l, now)
		}
		out = append(out, answer)
	}
	a.answer(w, http.StatusOK, out)
}

func workerLoad(l *feed.Load, now time.Time) *workerLoadJSON {
	r := &l.Worker
	return &workerLoadJSON{now.Sub(l.At).Seconds(), r.DeviceBlocksTotal, r.DeviceBlocksUsed, r.Running, r.Waiting}
}

func poolLoad(l *feed.Load, now time.Time) *poolLoadJSON {
	r := &l.Pool
	return &poolLoadJSON{now.Sub(l.At).Seconds(), r.HostBytesTotal, r.HostBytesUsed, r.DiskBytesTotal, r.DiskBytesUsed,
		r.ReadBytesPerSecond, r.WriteBytesPerSecond, r.ReadQueue, r.WriteQueue, r.PromoteMicros}
}

// bookingAnswer is one booked request in GET /v1/bookings.
type bookingAnswer struct {
	RequestID string `json:"request_id"`
	// Router is the router that booked the request, and Own is true when it is this one. Router is
	// empty without router_replica_sync.
	Router        string `json:"router"`
	Own           bool   `json:"own"`
	Model         string `json:"model"`
	BlockSize     uint32 `json:"block_size"`
	WorkerID      uint64 `json:"worker_id"`
	DPRank        uint32 `json:"dp_rank"`
	PrefillTokens int64  `json:"prefill_tokens"`
	OutputBlocks  int32  `json:"output_blocks"`
}

// bookings answers GET /v1/bookings: every booked request, ordered by id and router.
func (a *API) bookings(w http.ResponseWriter, _ *http.Request) {
	out := []bookingAnswer{}
	for _, b := range a.router.Bookings() {
		out = append(out, bookingAnswer{RequestID: b.ID, Router: b.Router, Own: b.Own, Model: b.Model.Name, BlockSize: b.Model.BlockSize,
			WorkerID: uint64(b.Worker.ID), DPRank: uint32(b.Worker.Rank), PrefillTokens: b.PrefillTokens, OutputBlocks: b.OutputBlocks})
	}
	slices.SortFunc(out, func(a, b bookingAnswer) int {
		return cmp.Or(strings.Compare(a.RequestID, b.RequestID), strings.Compare(a.Router, b.Router))
	})
	a.answer(w, http.StatusOK, out)
}
