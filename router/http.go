package router

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// Headers of POST /v1/route.
const (
	// RequestIDHeader names the request; an answer to "new" carries the one that
	// was given or made.
	RequestIDHeader = "X-Request-Id"
	// QualityHeader carries the Quality of the decision.
	QualityHeader = "X-Blockyard-Quality"
)

// api serves the router over HTTP.
type api struct {
	router  *Router
	metrics *metrics
}

// Handler serves the router over HTTP: POST /v1/route, GET /v1/workers,
// /v1/feeds, /v1/sources, /v1/dump, /metrics, /healthz and /readyz, and with a Registry POST and
// DELETE /v1/workers and GET /v1/agents. docs/router-api.md describes them.
func (r *Router) Handler() http.Handler {
	a := &api{router: r, metrics: newMetrics(r)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/route", a.route)
	mux.HandleFunc("GET /v1/workers", a.workers)
	if g, ok := r.transport.(*Registry); ok {
		g.register(mux, a)
	}
	mux.HandleFunc("GET /v1/feeds", a.feeds)
	mux.HandleFunc("GET /v1/sources", a.sources)
	mux.HandleFunc("GET /v1/dump", a.dump)
	mux.Handle("GET /metrics", a.metrics.handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		a.answer(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := r.Ready(); err != nil {
			a.fail(w, http.StatusServiceUnavailable, err)
			return
		}
		a.answer(w, http.StatusOK, map[string]string{"status": "ready"})
	})
	return mux
}

// drainTimeout bounds how long requests may take to finish after the end.
const drainTimeout = 2 * time.Second

// Serve answers HTTP on l until ctx ends, then lets the requests at hand finish
// and closes l. The error is nil when ctx ended it.
func (r *Router) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           r.Handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       time.Minute,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          zap.NewStdLog(r.log),
	}
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		if err := server.Shutdown(drain); err != nil {
			drained <- server.Close()
			return
		}
		drained <- nil
	})
	err := server.Serve(l)
	if stop() || !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve http on %s: %w", l.Addr(), err)
	}
	return <-drained
}

func (a *api) route(w http.ResponseWriter, req *http.Request) {
	q, err := decodeRoute(http.MaxBytesReader(w, req.Body, maxBody))
	if err != nil {
		a.fail(w, badBody(err), err)
		return
	}
	id := req.Header.Get(RequestIDHeader)
	if err := checkRequestID(RequestIDHeader, id); err != nil {
		a.fail(w, http.StatusBadRequest, err)
		return
	}
	switch q.Method {
	case "new":
		a.newRequest(w, q, id)
	case "potential_loads":
		a.potentialLoads(w, q)
	default:
		a.mark(w, q, id)
	}
}

func (a *api) newRequest(w http.ResponseWriter, q *routeRequest, id string) {
	if id == "" {
		id = rand.Text()
	}
	w.Header().Set(RequestIDHeader, id)
	start := time.Now()
	m, err := a.router.FindBestMatch(&Request{
		ID: id, Tokens: q.Tokens, LoRA: q.LoRAName, Salt: q.CacheNamespace, UpdateStates: true,
	})
	if err != nil {
		a.fail(w, status(err), err)
		return
	}
	a.metrics.decided(time.Since(start), &m, len(q.Tokens))
	w.Header().Set(QualityHeader, string(m.Quality))
	a.answer(w, http.StatusOK, &routeAnswer{
		Method: "new", WorkerID: uint64(m.Worker.ID), DPRank: uint32(m.Worker.Rank),
		OverlapBlocks: uint32(math.Round(m.Effective)),
	})
}

func (a *api) mark(w http.ResponseWriter, q *routeRequest, id string) {
	if q.RequestID != "" {
		id = q.RequestID
	}
	if id == "" {
		a.fail(w, http.StatusBadRequest, fmt.Errorf("request_id: %s needs one, here or in the header %s", q.Method, RequestIDHeader))
		return
	}
	m := markAnswer{Method: "free_marked", Success: true}
	if q.Method == "mark_prefill" {
		m = markAnswer{Method: "prefill_marked", Success: a.router.MarkPrefillCompleted(id) == nil}
	} else {
		a.router.Free(id)
	}
	quality := a.router.Quality()
	a.metrics.served(q.Method, quality)
	w.Header().Set(RequestIDHeader, id)
	w.Header().Set(QualityHeader, string(quality))
	a.answer(w, http.StatusOK, &m)
}

func (a *api) potentialLoads(w http.ResponseWriter, q *routeRequest) {
	loads, err := a.router.PotentialLoads(&Request{Tokens: q.Tokens, LoRA: q.LoRAName, Salt: q.CacheNamespace})
	if err != nil {
		a.fail(w, status(err), err)
		return
	}
	out := loadsAnswer{Method: "potential_loads", Loads: make([]loadAnswer, len(loads))}
	for i, l := range loads {
		out.Loads[i] = loadAnswer{uint64(l.Worker.ID), uint32(l.Worker.Rank), l.PrefillTokens, l.DecodeBlocks}
	}
	quality := a.router.Quality()
	a.metrics.served(q.Method, quality)
	w.Header().Set(QualityHeader, string(quality))
	a.answer(w, http.StatusOK, &out)
}

// status is the HTTP status of an error of the facade.
func status(err error) int {
	switch {
	case errors.Is(err, ErrNoWorkers):
		return http.StatusServiceUnavailable
	case errors.Is(err, schedule.ErrDuplicateRequest):
		return http.StatusConflict
	case errors.Is(err, ErrNoRequestID):
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

func badBody(err error) int {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}

type feedAnswer struct {
	PublisherID         string `json:"publisher_id"`
	Owner               string `json:"owner"`
	Pool                uint64 `json:"pool"`
	Cursor              uint64 `json:"cursor"`
	Announced           uint64 `json:"announced"`
	Health              string `json:"health"`
	Gaps                uint64 `json:"gaps"`
	Repaired            uint64 `json:"repaired"`
	Divergences         uint64 `json:"divergences"`
	DivergencesRepaired uint64 `json:"divergences_repaired"`
	DigestOK            bool   `json:"digest_ok"`
}

func (a *api) feeds(w http.ResponseWriter, _ *http.Request) {
	out := []feedAnswer{}
	for _, f := range a.router.Feeds() {
		out = append(out, feedAnswer{
			PublisherID: publisherName(f.PublisherID), Owner: f.Owner.String(), Pool: f.Pool,
			Cursor: f.Cursor, Announced: f.Announced, Health: string(f.Health),
			Gaps: f.Counters.Gaps, Repaired: f.Counters.GapsRepaired,
			Divergences: f.Counters.Divergences, DivergencesRepaired: f.Counters.DivergencesRepaired,
			DigestOK: f.DigestOK,
		})
	}
	a.answer(w, http.StatusOK, out)
}

type dumpAnswer struct {
	Owners []ownerAnswer `json:"owners"`
}

type ownerAnswer struct {
	Kind   string        `json:"kind"`
	ID     uint64        `json:"id"`
	Rank   uint32        `json:"rank"`
	Pool   uint64        `json:"pool"`
	Blocks []blockAnswer `json:"blocks"`
}

type blockAnswer struct {
	Hash  string   `json:"hash"`
	Tiers []string `json:"tiers"`
}

func (a *api) dump(w http.ResponseWriter, _ *http.Request) {
	out := dumpAnswer{Owners: []ownerAnswer{}}
	for _, o := range a.router.Dump() {
		owner := ownerAnswer{Kind: o.Owner.Kind.String(), ID: o.Owner.ID, Rank: uint32(o.Owner.Rank),
			Pool: o.Pool, Blocks: make([]blockAnswer, 0, len(o.Blocks))}
		for _, b := range o.Blocks {
			owner.Blocks = append(owner.Blocks, blockAnswer{fmt.Sprintf("%016x", uint64(b.Hash)), tierNames(b.Tiers)})
		}
		out.Owners = append(out.Owners, owner)
	}
	a.answer(w, http.StatusOK, &out)
}

func tierNames(m kv.TierMask) []string {
	var names []string
	for _, t := range kv.Tiers {
		if m.Has(t) {
			names = append(names, t.String())
		}
	}
	return names
}

func (a *api) fail(w http.ResponseWriter, code int, err error) {
	a.metrics.failed(code)
	a.answer(w, code, map[string]string{"error": err.Error()})
}

func (a *api) answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// The status is out; an error here is the client's going away.
	if err := json.NewEncoder(w).Encode(v); err != nil {
		a.router.log.Debug("answer is not delivered", zap.Error(err))
	}
}
