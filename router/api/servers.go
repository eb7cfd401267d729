package api

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/blockyard-ai/blockyard/internal/control"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/workers"
)

// serverAnswer is one worker server in GET /v1/servers.
type serverAnswer struct {
	WorkerID uint64 `json:"worker_id"`
	URL      string `json:"url"`
	// State is "starting", "ready", "draining" or "unhealthy". Problem says why it is not
	// "ready".
	State   string `json:"state"`
	Problem string `json:"problem,omitempty"`
	Source  string `json:"source"`
	Role    string `json:"role"`
	// Model is the name that the router uses; Models are all names, adapters included.
	Model        string              `json:"model"`
	Models       []serverModelAnswer `json:"models"`
	Engine       string              `json:"engine,omitempty"`
	Version      string              `json:"version,omitempty"`
	BlockSize    int                 `json:"block_size,omitempty"`
	DeviceBlocks int                 `json:"device_blocks,omitempty"`
	FirstRank    uint32              `json:"first_rank"`
	Ranks        uint32              `json:"ranks"`
	Events       []string            `json:"events"`
	// Requests counts the requests that have not ended.
	Requests int `json:"requests"`
}

// serverModelAnswer is one model of a worker server.
type serverModelAnswer struct {
	Name   string `json:"name"`
	Base   string `json:"base,omitempty"`
	MaxLen int    `json:"max_model_len,omitempty"`
}

// servers answers GET /v1/servers: each worker server with its state, models, engine facts and
// requests in progress.
func (a *API) servers(w http.ResponseWriter, d *workers.Directory) {
	out := []serverAnswer{}
	for _, s := range d.Workers() {
		answer := serverAnswer{
			WorkerID: uint64(s.ID), URL: s.URL, State: s.State.String(), Problem: s.Problem, Source: s.Source, Role: s.Role.String(),
			Model: s.Model, Models: []serverModelAnswer{}, Engine: s.Facts.Engine, Version: s.Facts.Version, BlockSize: s.Facts.BlockSize,
			DeviceBlocks: s.Facts.DeviceBlocks, FirstRank: s.FirstRank, Ranks: s.Ranks, Events: []string{}, Requests: d.Inflight(s.ID),
		}
		for _, m := range s.Models {
			answer.Models = append(answer.Models, serverModelAnswer(m))
		}
		for _, e := range s.Facts.Events {
			answer.Events = append(answer.Events, e.Endpoint)
		}
		out = append(out, answer)
	}
	a.answer(w, http.StatusOK, out)
}

// Paths by which operators drain a worker server.
const drainPath, undrainPath = "POST /v1/workers/{id}/drain", "POST /v1/workers/{id}/undrain"

// drainAnswer says whether a worker server gets new requests, and how many requests it still has. In
// a dry run Draining is what the call would make it.
type drainAnswer struct {
	Draining bool   `json:"draining"`
	DryRun   bool   `json:"dry_run,omitempty"`
	Requests int    `json:"requests"`
	WorkerID uint64 `json:"worker_id"`
}

// draining adds the paths that stop and resume new requests to a worker server.
func (a *API) draining(mux *http.ServeMux, d *workers.Directory) {
	for pattern, on := range map[string]bool{drainPath: true, undrainPath: false} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) {
			text := req.PathValue("id")
			id, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				a.fail(w, http.StatusBadRequest, fmt.Errorf("worker_id: %.60q is not a number in 1..%d", text, uint64(1<<64-1)))
				return
			}
			dryRun, err := dryRunOf(req)
			if err != nil {
				a.fail(w, http.StatusBadRequest, err)
				return
			}
			control.About(req, aboutDryRun(fmt.Sprintf("worker %d", id), dryRun))
			do := func(id kv.WorkerID) error { return d.Drain(id, on) }
			if dryRun {
				do = d.Known
			}
			switch err := do(kv.WorkerID(id)); {
			case errors.Is(err, workers.ErrUnknownWorker):
				a.fail(w, http.StatusNotFound, err)
			case err != nil:
				a.fail(w, http.StatusInternalServerError, err)
			default:
				a.answer(w, http.StatusOK, drainAnswer{WorkerID: id, Draining: on, Requests: d.Inflight(kv.WorkerID(id)), DryRun: dryRun})
			}
		})
	}
}
