package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/strictjson"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// maxBody bounds the body of a request.
const maxBody = 32 << 20

// maxRequestID bounds a request id, in bytes.
const maxRequestID = 256

// routeRequest is the body of POST /v1/route. The tag "in" lists the methods of a field.
type routeRequest struct {
	Method    string    `json:"method" in:"new explain potential_loads overlap mark_prefill mark_free output_block add_request record_routing_decision register_workers"`
	Tokens    tokenList `json:"tokens" in:"new explain potential_loads overlap add_request record_routing_decision"`
	RequestID string    `json:"request_id" in:"new explain mark_prefill mark_free output_block add_request"`
	// Model is optional when workers serve one model.
	Model    string `json:"model" in:"new explain potential_loads overlap mark_prefill mark_free output_block add_request record_routing_decision register_workers"`
	LoRAName string `json:"lora_name" in:"new explain potential_loads overlap add_request record_routing_decision"`
	// CacheNamespace is the cache salt.
	CacheNamespace string                   `json:"cache_namespace" in:"new explain potential_loads overlap add_request record_routing_decision"`
	BlockMMInfos   []*decide.BlockExtraInfo `json:"block_mm_infos" in:"new explain potential_loads overlap add_request record_routing_decision"`
	// PriorityJump, in seconds, and StrictPriority order waiting requests.
	PriorityJump   float64 `json:"priority_jump" in:"new explain"`
	StrictPriority uint32  `json:"strict_priority" in:"new explain"`
	// PolicyClass is the family or explicit class of the queue. DeadlineMS is for queues that order by it.
	PolicyClass string `json:"policy_class" in:"new explain"`
	DeadlineMS  uint32 `json:"deadline_ms" in:"new explain"`

	Override       *config.Override   `json:"router_config_override" in:"new explain potential_loads add_request"`
	ExpectedOutput uint32             `json:"expected_output_tokens" in:"new explain add_request"`
	Pinned         *workerName        `json:"pinned_worker" in:"new explain"`
	Allowed        []kv.WorkerID      `json:"allowed_worker_ids" in:"new explain"`
	Constraints    routingConstraints `json:"routing_constraints" in:"new explain"`
	// TimeoutMS bounds the wait for a worker; 0 means the default of the transport.
	TimeoutMS uint32 `json:"timeout_ms" in:"new explain"`
	// UpdateStates false decides without a booking; absent is true. Explain asks for the parts
	// of the cost.
	UpdateStates *bool `json:"update_states" in:"new"`
	Explain      bool  `json:"explain" in:"new"`
	// Worker is where the caller has sent the prompt. CachedTokens of the prompt need no computing.
	Worker       *workerName `json:"worker" in:"add_request record_routing_decision"`
	CachedTokens uint32      `json:"cached_tokens" in:"add_request"`
	// WorkerIDs are workers without a publisher. BlockSize is that of the model by default.
	WorkerIDs  []uint64 `json:"worker_ids" in:"register_workers"`
	BlockSize  uint32   `json:"block_size" in:"register_workers"`
	TTLSeconds uint32   `json:"ttl_seconds" in:"register_workers"`
	// DecayFraction belongs to "output_block".
	DecayFraction *float64 `json:"decay_fraction" in:"output_block"`
}

// timeout returns TimeoutMS as a duration.
func (q *routeRequest) timeout() time.Duration { return time.Duration(q.TimeoutMS) * time.Millisecond }

// books reports whether the chosen worker is booked.
func (q *routeRequest) books() bool {
	return q.Method == "new" && (q.UpdateStates == nil || *q.UpdateStates)
}

// workerName is a rank of a worker. Without DPRank it is the worker's only rank.
type workerName struct {
	WorkerID kv.WorkerID `json:"worker_id"`
	DPRank   *kv.DPRank  `json:"dp_rank"`
}

// routingConstraints are the taints that a worker must have, and weights of preferred taints.
type routingConstraints struct {
	Required  []string           `json:"required_taints"`
	Preferred map[string]float64 `json:"preferred_taints"`
}

// query returns q as a request of package router, with the request id. The caller completes the
// rank of a pinned worker that q names without a rank.
func (q *routeRequest) query(id string) *router.Request {
	out := &router.Request{
		ID: id, Model: q.Model, Tokens: q.Tokens, LoRA: q.LoRAName, Salt: q.CacheNamespace, BlockMMInfos: q.BlockMMInfos,
		PriorityJump: q.PriorityJump, StrictPriority: q.StrictPriority,
		PolicyClass: q.PolicyClass, Deadline: time.Duration(q.DeadlineMS) * time.Millisecond,
		Override: q.Override, ExpectedOutput: int(q.ExpectedOutput), RequiredTaints: q.Constraints.Required,
		UpdateStates: q.books(), Explain: q.Explain || q.Method == "explain",
	}
	out.Misses = out.Explain
	if q.Pinned != nil {
		out.Pinned = &kv.Worker{ID: q.Pinned.WorkerID}
		if q.Pinned.DPRank != nil {
			out.Pinned.Rank = *q.Pinned.DPRank
		}
	}
	if q.Allowed != nil {
		out.Allowed = make(map[kv.WorkerID]struct{}, len(q.Allowed))
		for _, w := range q.Allowed {
			out.Allowed[w] = struct{}{}
		}
	}
	// Sorted, because the order of a map is random and float sums depend on the order.
	for _, taint := range slices.Sorted(maps.Keys(q.Constraints.Preferred)) {
		out.PreferredTaints = append(out.PreferredTaints, schedule.TaintPreference{Taint: taint, Weight: q.Constraints.Preferred[taint]})
	}
	return out
}

// routeAnswer is the answer to "new".
type routeAnswer struct {
	Method        string `json:"method"`
	WorkerID      uint64 `json:"worker_id"`
	DPRank        uint32 `json:"dp_rank"`
	OverlapBlocks uint32 `json:"overlap_blocks"`
	// Endpoint is the URL of the worker's server; empty when the worker told none.
	Endpoint string `json:"endpoint,omitempty"`
	// RankHeader is the header that sends a request to the rank, of a worker with several.
	RankHeader  map[string]string  `json:"rank_header,omitempty"`
	Explanation *explanationAnswer `json:"explanation,omitempty"`
}

// rejectedAnswer is the answer to "new" when the queue is full.
type rejectedAnswer struct {
	Method    string    `json:"method"`
	Rejection rejection `json:"rejection"`
}

// rejection names the reached limit of the queue.
type rejection struct {
	PolicyClass string `json:"policy_class"`
	LimitKind   string `json:"limit_kind"`
	Current     int    `json:"current"`
	Limit       int    `json:"limit"`
}

// overlapsAnswer is the answer to "overlap".
type overlapsAnswer struct {
	Method   string          `json:"method"`
	Overlaps []overlapAnswer `json:"overlaps"`
}

// overlapAnswer is one worker's overlap with a prompt: blocks by tier, their weighted sum, and
// the sum in tokens.
type overlapAnswer struct {
	WorkerID        uint64  `json:"worker_id"`
	DPRank          uint32  `json:"dp_rank"`
	EffectiveBlocks float64 `json:"effective_overlap_blocks"`
	CachedTokens    int     `json:"cached_tokens"`
	Device          uint32  `json:"device"`
	Host            uint32  `json:"host_pinned"`
	Disk            uint32  `json:"disk"`
	External        uint32  `json:"external"`
}

// markAnswer is the answer to "mark_prefill", "mark_free" and "output_block".
type markAnswer struct {
	Method  string `json:"method"`
	Success bool   `json:"success"`
	// Active says whether the request was active, in the answer to "mark_free".
	Active *bool `json:"active,omitempty"`
}

// loadsAnswer is the answer to "potential_loads".
type loadsAnswer struct {
	Method string       `json:"method"`
	Loads  []loadAnswer `json:"loads"`
	// PendingCount counts the waiting requests. PendingISLTokens counts their prompt tokens.
	PendingCount     int `json:"pending_count"`
	PendingISLTokens int `json:"pending_isl_tokens"`
}

// loadAnswer is the load of one worker with the request added.
type loadAnswer struct {
	WorkerID      uint64 `json:"worker_id"`
	DPRank        uint32 `json:"dp_rank"`
	PrefillTokens int    `json:"potential_prefill_tokens"`
	DecodeBlocks  int    `json:"potential_decode_blocks"`
}

// decodeRoute reads and checks a request body. The error names the field.
func decodeRoute(body io.Reader) (*routeRequest, error) {
	var q routeRequest
	if err := strictjson.Decode(body, &q, "request", wantedFields()); err != nil {
		return nil, err
	}
	return &q, q.validate()
}

// Limits of the lists and numbers of a request.
const (
	maxTaints  = 1024
	maxAllowed = 1 << 14
	maxTimeout = 3_600_000 // milliseconds
)

// validate reports the first field that is out of range or does not belong to the method.
func (q *routeRequest) validate() error {
	switch q.Method {
	case "new", "explain", "potential_loads", "overlap", "add_request", "record_routing_decision":
		if len(q.Tokens) == 0 {
			return errors.New("tokens: at least one is required")
		}
	case "mark_prefill", "mark_free", "output_block", "register_workers":
	default:
		return fmt.Errorf("method: %.64q is not new, explain, potential_loads, overlap, mark_prefill, mark_free, output_block, "+
			"add_request, record_routing_decision or register_workers", q.Method)
	}
	if err := q.checkFields(); err != nil {
		return err
	}
	if d := q.DecayFraction; d != nil && !(*d >= 0 && *d <= 1) { // true for NaN too
		return fmt.Errorf("decay_fraction: %v is not in 0..1", *d)
	}
	if q.ExpectedOutput > math.MaxInt32 {
		return fmt.Errorf("expected_output_tokens: %d is not in 0..%d", q.ExpectedOutput, math.MaxInt32)
	}
	if q.TimeoutMS > maxTimeout {
		return fmt.Errorf("timeout_ms: %d is not in 0..%d", q.TimeoutMS, maxTimeout)
	}
	if n := len(q.Constraints.Required) + len(q.Constraints.Preferred); n > maxTaints {
		return fmt.Errorf("routing_constraints: %d taints are more than %d", n, maxTaints)
	}
	if n := len(q.Allowed); n > maxAllowed {
		return fmt.Errorf("allowed_worker_ids: %d workers are more than %d", n, maxAllowed)
	}
	if err := q.checkTargets(); err != nil {
		return err
	}
	return q.checkNames()
}

// checkTargets reports a worker, a list of workers or a model that the method requires and the
// request lacks.
func (q *routeRequest) checkTargets() error {
	switch q.Method {
	case "add_request", "record_routing_decision":
		if q.Worker == nil {
			return fmt.Errorf("worker: %s needs the worker that has the request", q.Method)
		}
	case "register_workers":
		if n := len(q.WorkerIDs); n == 0 || n > maxAllowed {
			return fmt.Errorf("worker_ids: %d workers, want 1 to %d", n, maxAllowed)
		}
		if q.Model == "" {
			return errors.New("model: register_workers needs the model of the workers")
		}
	}
	return nil
}

// tokenList is an array of token ids. It has a decoder of its own because prompts have
// tens of thousands of tokens.
type tokenList []uint32

// UnmarshalJSON reads an array of integers in 0..2^32-1. data is valid JSON.
func (l *tokenList) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		*l = nil
		return nil
	}
	if data[0] != '[' {
		return errors.New("tokens: want an array of token ids")
	}
	out := make(tokenList, 0, bytes.Count(data, []byte{','})+1)
	// data is valid JSON, so blanks and commas can be skipped without a check of their order.
	for at := 1; data[at] != ']'; {
		if strings.IndexByte(" \t\r\n,", data[at]) >= 0 {
			at++
			continue
		}
		v, n := parseToken(data[at:])
		if n == 0 {
			return fmt.Errorf("tokens[%d]: want an integer in 0..%d", len(out), uint32(math.MaxUint32))
		}
		out = append(out, v)
		at += n
	}
	*l = out
	return nil
}

// parseToken reads the token id at the start of b. n is the number of its digits, 0 if b does
// not begin with a token id.
func parseToken(b []byte) (v uint32, n int) {
	var wide uint64
	for n < len(b) && '0' <= b[n] && b[n] <= '9' {
		if wide = wide*10 + uint64(b[n]-'0'); wide > math.MaxUint32 {
			return 0, 0
		}
		n++
	}
	if n < len(b) && strings.IndexByte(" \t\r\n,]", b[n]) < 0 {
		return 0, 0 // a fraction or an exponent
	}
	return uint32(wide), n
}

// maxName bounds lora_name and cache_namespace, in bytes.
const maxName = 4096

// checkFields returns an error for the first field that is set but does not belong to the method.
// The tag "in" of a field of routeRequest lists the methods that accept the field.
func (q *routeRequest) checkFields() error {
	v := reflect.ValueOf(q).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if v.Field(i).IsZero() || slices.Contains(strings.Fields(f.Tag.Get("in")), q.Method) {
			continue
		}
		return fmt.Errorf("%s: not a field of method %s", f.Tag.Get("json"), q.Method)
	}
	return nil
}

// checkNames returns an error for the first model, adapter, namespace or taint whose name exceeds
// its limit in bytes.
func (q *routeRequest) checkNames() error {
	for _, name := range []struct {
		field, value string
		limit        int
	}{
		{"model", q.Model, kvevent.MaxModel}, {"lora_name", q.LoRAName, maxName}, {"cache_namespace", q.CacheNamespace, maxName},
	} {
		if err := checkLength(name.field, name.value, name.limit); err != nil {
			return err
		}
	}
	for i, taint := range q.Constraints.Required {
		if err := checkLength(fmt.Sprintf("routing_constraints.required_taints[%d]", i), taint, kvevent.MaxTaint); err != nil {
			return err
		}
	}
	for taint := range q.Constraints.Preferred {
		if err := checkLength("routing_constraints.preferred_taints", taint, kvevent.MaxTaint); err != nil {
			return err
		}
	}
	return nil
}

// checkRequestID refuses an id that a header cannot carry: HTTP and NATS trim blanks, and
// clients disagree about bytes outside ASCII.
func checkRequestID(field, id string) error {
	if err := checkLength(field, id, maxRequestID); err != nil {
		return err
	}
	for i := range len(id) {
		if c := id[i]; c < ' ' || c > '~' || c == ' ' && (i == 0 || i == len(id)-1) {
			return fmt.Errorf("%s: byte %d is %#02x: want printable ASCII, with blanks only inside", field, i, c)
		}
	}
	return nil
}

// checkLength refuses a value of more than limit bytes.
func checkLength(field, value string, limit int) error {
	if len(value) > limit {
		return fmt.Errorf("%s: %d bytes are more than %d", field, len(value), limit)
	}
	return nil
}

// wantedFields describes the accepted values of fields whose types have a wider range.
func wantedFields() map[string]string {
	return map[string]string{
		"expected_output_tokens": fmt.Sprintf("an integer in 0..%d", math.MaxInt32),
		"timeout_ms":             fmt.Sprintf("an integer in 0..%d", maxTimeout),
		"decay_fraction":         "a number in 0..1",
	}
}
