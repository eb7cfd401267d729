package api

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/schedule"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

// rankHeader is the header by which vLLM's servers choose a data-parallel rank.
const rankHeader = "X-data-parallel-rank"

// maxExplained bounds the workers in an explanation.
const maxExplained = 16

// explanationAnswer says how workers were compared: the chosen one first, then others by
// ascending cost.
type explanationAnswer struct {
	// Workers are the chosen worker and at most maxExplained-1 others. Compared counts all.
	Workers  []candidateAnswer `json:"workers"`
	Compared int               `json:"compared"`
	// Misses are the tokens that the chosen worker will have to compute, by cause. Absent when the
	// router explains no misses.
	Misses []missAnswer `json:"misses,omitempty"`
	// Score is "price" or "weights", with a reason behind "weights" when a price was asked for.
	Score string `json:"score"`
}

// candidateAnswer has the parts of one worker's cost: see schedule.Candidate.
type candidateAnswer struct {
	WorkerID        uint64  `json:"worker_id"`
	DPRank          uint32  `json:"dp_rank"`
	Formula         string  `json:"formula"`
	Cost            float64 `json:"cost"`
	Weight          float64 `json:"weight"`
	Prefill         float64 `json:"prefill_blocks"`
	Decode          float64 `json:"decode_blocks"`
	Credit          float64 `json:"credit_blocks"`
	TaintFactor     float64 `json:"taint_factor"`
	EffectiveBlocks float64 `json:"effective_overlap_blocks"`
	CachedTokens    int     `json:"cached_tokens"`
	Device          uint32  `json:"device"`
	Host            uint32  `json:"host_pinned"`
	Disk            uint32  `json:"disk"`
	External        uint32  `json:"external"`
	InFlight        uint32  `json:"in_flight,omitempty"`
	PendingPrefill  int64   `json:"pending_prefill_tokens"`
	ActiveBlocks    int32   `json:"active_blocks"`
	ActiveRequests  int32   `json:"active_requests"`
	// Price has the parts of Cost in milliseconds; absent when weights decided.
	Price *priceAnswer `json:"price,omitempty"`
}

// priceAnswer has the parts of a price: see price.Price. All but Doubt are milliseconds. Objective says
// which parts count.
type priceAnswer struct {
	Objective string `json:"objective"`

	Wait    float64 `json:"wait_ms"`
	TTFT    float64 `json:"ttft_ms"`
	Decode  float64 `json:"decode_ms"`
	Machine float64 `json:"machine_ms"`
	Imposed float64 `json:"imposed_ms"`
	Doubt   float64 `json:"doubt"`
}

// chosen returns the answer to "new" and "explain" for the decision m: the worker, the URL of
// its server, and the header that selects its data-parallel rank.
func (s *service) chosen(q *routeRequest, model *router.Model, m *router.Match) *routeAnswer {
	place := model.Place(m.Worker)
	// The directory of worker servers has asked the server itself, so its URL wins.
	if s.servers != nil {
		if server, ok := s.servers.Worker(m.Worker.ID); ok {
			place.Endpoint, place.Ranks = server.URL, max(place.Ranks, int(server.Ranks))
		}
	}
	out := &routeAnswer{Method: q.Method, WorkerID: uint64(m.Worker.ID), DPRank: uint32(m.Worker.Rank),
		OverlapBlocks: m.OverlapBlocks(), Endpoint: place.Endpoint}
	if place.Ranks > 1 {
		out.RankHeader = map[string]string{rankHeader: strconv.FormatUint(uint64(m.Worker.Rank), 10)}
	}
	if q.Explain || q.Method == "explain" {
		out.Explanation = explained(m)
		out.Explanation.Misses = expectedMisses(model, m)
	}
	return out
}

// explained returns how the workers compared: the chosen worker first, then others in the order
// of their cost, at most maxExplained in all.
func explained(m *router.Match) *explanationAnswer {
	out := &explanationAnswer{Workers: []candidateAnswer{}, Compared: len(m.Candidates), Score: m.Mode}
	chosen := slices.IndexFunc(m.Candidates, func(c schedule.Candidate) bool { return c.Worker == m.Worker })
	if chosen >= 0 {
		out.Workers = append(out.Workers, candidateOf(&m.Candidates[chosen]))
	}
	for i := range m.Candidates {
		if i != chosen && len(out.Workers) < maxExplained {
			out.Workers = append(out.Workers, candidateOf(&m.Candidates[i]))
		}
	}
	return out
}

// candidateOf returns one compared worker as JSON: its cost, what the cost consists of, the
// cached blocks by tier, and the load when the router decided.
func candidateOf(c *schedule.Candidate) candidateAnswer {
	out := candidateAnswer{
		WorkerID: uint64(c.Worker.ID), DPRank: uint32(c.Worker.Rank), Formula: c.Formula(),
		Cost: c.Cost, Weight: c.Weight, Prefill: c.Prefill, Decode: c.Decode, Credit: c.Credit, TaintFactor: c.TaintFactor,
		EffectiveBlocks: c.Effective, CachedTokens: c.CachedTokens,
		Device: c.Hits[kv.TierDevice], Host: c.Hits[kv.TierHost], Disk: c.Hits[kv.TierDisk], External: c.Hits[kv.TierExternal],
		InFlight: c.InFlight, PendingPrefill: c.PendingPrefill, ActiveBlocks: c.ActiveBlocks, ActiveRequests: c.Requests,
	}
	if p := &c.Price; c.Mode == schedule.ModePrice {
		out.Price = &priceAnswer{c.Objective.String(), p.Wait, p.TTFT, p.Decode, p.Machine, p.Imposed, p.Doubt}
	}
	return out
}

// readOnly reports whether the request changes nothing, whatever becomes of it.
func (q *routeRequest) readOnly() bool {
	switch q.Method {
	case "new":
		return !q.books()
	case "explain", "potential_loads", "overlap":
		return true
	}
	return false
}

// about returns what the request is about, for the log: no prompt, no adapter and no salt. id is
// the request id, or empty.
func (q *routeRequest) about(id string) string {
	parts := []string{q.Method}
	if id != "" {
		parts = append(parts, fmt.Sprintf("request %.64q", id))
	}
	if q.Model != "" {
		parts = append(parts, fmt.Sprintf("model %.64q", q.Model))
	}
	if q.Worker != nil {
		parts = append(parts, fmt.Sprintf("worker %d", uint64(q.Worker.WorkerID)))
	}
	if n := len(q.WorkerIDs); n > 0 {
		parts = append(parts, fmt.Sprintf("%d workers from %d", n, q.WorkerIDs[0]))
	}
	return strings.Join(parts, ", ")
}

// namedWorker returns the worker that a request of "add_request" or "record_routing_decision"
// names. A name without a rank means the only rank of the worker. The error is a QueryError when
// the worker has several ranks, and ErrUnknownWorker when the model's index has no such worker.
func namedWorker(model *router.Model, n *workerName) (kv.Worker, error) {
	w := kv.Worker{ID: n.WorkerID}
	if n.DPRank != nil {
		w.Rank = *n.DPRank
	} else if model.Decide().Ranks(n.WorkerID) > 1 {
		return w, &decide.QueryError{Err: fmt.Errorf("worker: worker %d has several ranks; dp_rank must say which", uint64(n.WorkerID))}
	} else if rank, only := model.Decide().UniqueDPRankForWorker(n.WorkerID); only {
		w.Rank = rank
	}
	if _, known := model.Index().Members().Find(w); !known {
		return w, fmt.Errorf("worker: %s: %w", w, decide.ErrUnknownWorker)
	}
	return w, nil
}

// addRequest answers "add_request": it books a request that the caller has sent to a worker
// without asking the router, so that its load counts there. id is the request id.
func (s *service) addRequest(q *routeRequest, id string) reply {
	if id == "" {
		return s.fail(http.StatusBadRequest, fmt.Errorf("request_id: add_request needs a request id, in the body or in the header %s", RequestIDHeader))
	}
	return s.toWorker(q, id, "request_added", func(model *router.Model, w kv.Worker) error {
		return model.Decide().AddRequest(q.query(id), w, int(min(q.CachedTokens, uint32(len(q.Tokens)))))
	})
}

// recordDecision answers "record_routing_decision": predictions count the prompt's blocks as
// held by the worker.
func (s *service) recordDecision(q *routeRequest) reply {
	return s.toWorker(q, "", "routing_decision_recorded", func(model *router.Model, w kv.Worker) error {
		return model.Decide().RecordRoutingDecision(q.query(""), w)
	})
}

// toWorker calls f with the model and the worker that a request names, and returns the reply:
// success with the method name answer, or the error. id is the request id, or empty.
func (s *service) toWorker(q *routeRequest, id, answer string, f func(model *router.Model, w kv.Worker) error) reply {
	model, err := s.model(q.Model)
	if err != nil {
		return s.failedRequest(id, err)
	}
	w, err := namedWorker(model, q.Worker)
	if err != nil {
		return s.failedRequest(id, err)
	}
	if err := f(model, w); err != nil {
		return s.failedRequest(id, err)
	}
	return s.answered(q.Method, id, model.Quality(), &markAnswer{Method: answer, Success: true})
}

// errRegistrationClosed says that the caller may not register workers.
var errRegistrationClosed = errors.New("register_workers: only on the control listener (--control), or with --http-registration")

// registeredAnswer is the answer to "register_workers".
type registeredAnswer struct {
	Method string `json:"method"`
	// Registered counts the registered workers. Known counts those that announce themselves.
	Registered       int    `json:"registered"`
	Known            int    `json:"known"`
	ExpiresInSeconds uint32 `json:"expires_in_seconds"`
}

// registerWorkers answers "register_workers": it registers workers of which only the id and the
// model are known, for q.TTLSeconds. Workers from other sources stay as they are and count as
// known. c may lack the permission.
func (s *service) registerWorkers(q *routeRequest, c *caller) reply {
	g := s.router.Registry()
	if !c.registers || g == nil {
		return s.failed(errRegistrationClosed)
	}
	size := q.BlockSize
	if size == 0 {
		size = s.blockSize(q.Model)
	}
	ttl := cmp.Or(q.TTLSeconds, defaultTTL)
	elsewhere := make(map[uint64]bool)
	for _, w := range s.router.Workers() {
		if w.Card.Source != source.FromHTTP {
			elsewhere[uint64(w.Worker.ID)] = true
		}
	}
	out := registeredAnswer{Method: "workers_registered", ExpiresInSeconds: ttl}
	for _, id := range q.WorkerIDs {
		if elsewhere[id] {
			out.Known++
			continue
		}
		err := g.Register(&registry.Registration{WorkerID: id, Model: q.Model, BlockSize: size}, time.Duration(ttl)*time.Second)
		switch {
		case errors.Is(err, registry.ErrConflict):
			return s.fail(http.StatusConflict, err)
		case err != nil:
			return s.fail(http.StatusBadRequest, err)
		}
		out.Registered++
	}
	g.AnnounceSoon()
	return s.answered(q.Method, "", s.router.Quality(), &out)
}

// blockSize returns the block size of a model's workers in tokens. For an unknown model it
// returns the configured block size, or 0 without one.
func (s *service) blockSize(name string) uint32 {
	if m, err := s.router.Model(name); err == nil {
		return m.Key().BlockSize
	}
	if size := s.router.Config().KVCacheBlockSize; size != nil {
		return *size
	}
	return 0
}
