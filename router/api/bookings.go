package api

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
)

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
