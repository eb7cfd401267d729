package selection

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/api/shape"
	"github.com/blockyard-ai/blockyard/router/feed"
)

// maxWorkers bounds the workers that are registered here.
const maxWorkers = 4096

// Values of record.Lifecycle.
const (
	incomplete    = "incomplete"
	schedulable   = "schedulable"
	unschedulable = "unschedulable"
)

// record is a worker in the shape of the service.
type record struct {
	WorkerID     uint64 `json:"worker_id"`
	ModelName    string `json:"model_name"`
	RoutingGroup string `json:"routing_group"`
	Lifecycle    string `json:"lifecycle"`
	facts
	// Reasons say why the worker gets no requests.
	Reasons []string `json:"not_schedulable_reasons,omitempty"`
	// told is true when the router was told of the worker here, elsewhere when another source
	// announces the worker.
	told, elsewhere bool
}

// facts are the fields of a worker that PATCH may change. The last five but Taints are kept for
// their readers: choices do not use them.
type facts struct {
	Endpoint          *string           `json:"endpoint"`
	KVEventsEndpoint  *string           `json:"kv_events_endpoint"`
	KVEventsEndpoints map[uint32]string `json:"kv_events_endpoints,omitempty"`
	ReplayEndpoint    *string           `json:"replay_endpoint"`
	BlockSize         *uint32           `json:"block_size"`
	StartRank         *uint32           `json:"data_parallel_start_rank"`
	Ranks             *uint32           `json:"data_parallel_size"`
	MaxBatchedTokens  *uint64           `json:"max_num_batched_tokens"`
	TotalKVBlocks     *uint64           `json:"total_kv_blocks"`
	StableRoutingID   *string           `json:"stable_routing_id"`
	IsEagle           *bool             `json:"is_eagle"`
	Taints            []string          `json:"taints"`
	TopologyDomains   map[string]string `json:"topology_domains"`
	TransferDomain    *string           `json:"kv_transfer_domain"`
	Enforcement       *enforcement      `json:"kv_transfer_enforcement"`
	TransferWeight    *float32          `json:"kv_transfer_preferred_weight"`
}

// enforcement says how a request's transfer domain limits its decode workers.
type enforcement string

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *enforcement) UnmarshalText(text []byte) error {
	if *e = enforcement(text); *e != "required" && *e != "preferred" {
		return fmt.Errorf("kv_transfer_enforcement: %.64q is not required or preferred", text)
	}
	return nil
}

// merge replaces the fields of f by those that patch has; absent ones are nil there and keep
// their value.
func (f *facts) merge(patch *facts) {
	to, from := reflect.ValueOf(f).Elem(), reflect.ValueOf(patch).Elem()
	for i := range from.NumField() {
		if !from.Field(i).IsNil() {
			to.Field(i).Set(from.Field(i))
		}
	}
}

// Bounds of a worker's data-parallel ranks.
const (
	maxRanks     = 1024
	maxFirstRank = 1<<16 - 1
)

// ranks returns the first data-parallel rank and the number of ranks.
func (f *facts) ranks() (first, n uint32) { return value(f.StartRank, 0), value(f.Ranks, 1) }

// value returns what p points to, or the default of an absent field.
func value[T any](p *T, absent T) T {
	if p == nil {
		return absent
	}
	return *p
}

// events returns the endpoint of a rank's KV events, empty for none.
func (f *facts) events(rank uint32) string {
	if len(f.KVEventsEndpoints) > 0 {
		return f.KVEventsEndpoints[rank]
	}
	if _, n := f.ranks(); n == 1 {
		return value(f.KVEventsEndpoint, "")
	}
	return ""
}

// missing returns a line for each fact that a worker must tell before it can get requests, and
// for each that is out of range; none when all is well.
func (s *Server) missing(f *facts) (reasons []string) {
	first, n := f.ranks()
	if value(f.Endpoint, "") == "" {
		reasons = append(reasons, "endpoint is required")
	}
	if value(f.BlockSize, 0) == 0 {
		reasons = append(reasons, "block_size must be greater than 0")
	}
	if n == 0 {
		reasons = append(reasons, "data_parallel_size must be greater than 0")
	}
	if n > maxRanks {
		return append(reasons, fmt.Sprintf("data_parallel_size: %d is not in 1..%d", n, maxRanks))
	}
	if first > maxFirstRank {
		return append(reasons, fmt.Sprintf("data_parallel_start_rank: %d is not in 0..%d", first, maxFirstRank))
	}
	if s.router.Config().RouterQueueThreshold != nil && f.MaxBatchedTokens == nil {
		reasons = append(reasons, "max_num_batched_tokens is required while queueing is enabled")
	}
	for rank := first; s.follower != nil && rank < first+n; rank++ {
		if f.events(rank) == "" {
			reasons = append(reasons, fmt.Sprintf("kv_events endpoint is required for dp_rank %d", rank))
		}
	}
	return reasons
}

// own reports whether k, a worker of the router, is a rank of the record's worker.
func (r *record) own(k *feed.Worker) bool {
	first, n := r.ranks()
	return uint64(k.Worker.ID) == r.WorkerID && k.Model == shape.ModelOf(r.ModelName, r.RoutingGroup) && k.BlockSize == *r.BlockSize &&
		uint32(k.Worker.Rank) >= first && uint32(k.Worker.Rank)-first < n
}

// joined reports whether the router has every rank of the record's worker by now: a new worker
// joins with the next announcement. all are the router's workers, ordered by id.
func (r *record) joined(all []feed.Worker) bool {
	at, _ := slices.BinarySearchFunc(all, kv.WorkerID(r.WorkerID), func(k feed.Worker, id kv.WorkerID) int { return cmp.Compare(k.Worker.ID, id) })
	_, n := r.ranks()
	found := uint32(0)
	for ; at < len(all) && uint64(all[at].Worker.ID) == r.WorkerID; at++ {
		if r.own(&all[at]) {
			found++
		}
	}
	return found == n
}

// view returns a copy of the record for an answer, with Lifecycle set: schedulable once the
// router has the worker, and incomplete, with the reasons, before. all are the router's workers,
// ordered by id.
func (r *record) view(all []feed.Worker) *record {
	out := *r
	switch {
	case !r.told:
		out.Lifecycle = incomplete
	case !r.joined(all):
		out.Lifecycle, out.Reasons = incomplete, []string{"the worker has not joined the router yet"}
	default:
		out.Lifecycle = schedulable
	}
	return &out
}
