package dynamo

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const topic = kvevent.Topic

// Bounds of a record's numbers.
const (
	maxDataParallel = 1024
	maxBlockSize    = 4096
)

// card is a worker's model card.
type card struct {
	worker    kv.WorkerID
	model     string
	blockSize uint32
	firstRank kv.DPRank
	ranks     uint32
	// deviceBlocks is the capacity of a rank's device. batchedTokens is the most tokens of
	// one step. 0 is unknown.
	deviceBlocks, batchedTokens uint64
	// eagle is true when the engine hashes pairs of tokens.
	eagle bool
}

// origin is the discovery record of an event source.
type origin struct {
	publisher uint64
	worker    kv.Worker
	target    target
}

// target is where a source answers recovery queries. The zero value means no target.
type target struct {
	address string // host:port
	path    string
}

func (t target) String() string { return t.address + "/" + t.path }

// endpointName is an Endpoint in a record.
type endpointName struct {
	Namespace string `json:"namespace"`
	Component string `json:"component"`
	Name      string `json:"name"`
}

func (n endpointName) is(e Endpoint) bool {
	return n.Namespace == e.Namespace && n.Component == e.Component && n.Name == e.Name
}

// decodeCard decodes a discovery record of Dynamo in JSON: the model card of a worker of endpoint e,
// with the model and the ranks. Fields that the router does not use are ignored. The error names
// the field.
func decodeCard(data []byte, e Endpoint) (card, error) {
	var r struct {
		Type       string `json:"type"`
		Namespace  string `json:"namespace"`
		Component  string `json:"component"`
		Endpoint   string `json:"endpoint"`
		InstanceID uint64 `json:"instance_id"`
		Card       struct {
			Name      string `json:"display_name"`
			BlockSize uint32 `json:"kv_cache_block_size"`
			Runtime   struct {
				FirstRank     uint32        `json:"data_parallel_start_rank"`
				Ranks         *uint32       `json:"data_parallel_size"`
				StateEndpoint *endpointName `json:"kv_state_endpoint"`
				DeviceBlocks  uint64        `json:"total_kv_blocks"`
				BatchedTokens uint64        `json:"max_num_batched_tokens"`
				Eagle         bool          `json:"enable_eagle"`
			} `json:"runtime_config"`
		} `json:"card_json"`
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return card{}, fmt.Errorf("model card: %w", err)
	}
	ranks := uint32(1) // the default of data_parallel_size
	if r.Card.Runtime.Ranks != nil {
		ranks = *r.Card.Runtime.Ranks
	}
	state := r.Card.Runtime.StateEndpoint
	switch {
	case r.Type != "Model":
		return card{}, fmt.Errorf("model card: type: %.64q is not Model", r.Type)
	case !(endpointName{r.Namespace, r.Component, r.Endpoint}).is(e):
		return card{}, fmt.Errorf("model card: namespace, component, endpoint: not those of %s", e)
	case state != nil && !state.is(e):
		return card{}, fmt.Errorf("model card: kv_state_endpoint: not %s", e)
	case r.InstanceID == 0:
		return card{}, fmt.Errorf("model card: instance_id: must not be 0")
	case len(r.Card.Name) > kvevent.MaxModel || strings.ContainsFunc(r.Card.Name, unicode.IsControl):
		return card{}, fmt.Errorf("model card: display_name: %.64q is longer than %d bytes or has a control character", r.Card.Name, kvevent.MaxModel)
	case r.Card.BlockSize < 1 || r.Card.BlockSize > maxBlockSize:
		return card{}, fmt.Errorf("model card: kv_cache_block_size: %d is not in 1..%d", r.Card.BlockSize, maxBlockSize)
	case ranks < 1 || ranks > maxDataParallel:
		return card{}, fmt.Errorf("model card: data_parallel_size: %d is not in 1..%d", ranks, maxDataParallel)
	case r.Card.Runtime.FirstRank > 1<<20:
		return card{}, fmt.Errorf("model card: data_parallel_start_rank: %d is not in 0..%d", r.Card.Runtime.FirstRank, 1<<20)
	}
	return card{
		worker: kv.WorkerID(r.InstanceID), model: r.Card.Name, blockSize: r.Card.BlockSize,
		firstRank: kv.DPRank(r.Card.Runtime.FirstRank), ranks: ranks,
		deviceBlocks: r.Card.Runtime.DeviceBlocks, batchedTokens: r.Card.Runtime.BatchedTokens,
		eagle: r.Card.Runtime.Eagle,
	}, nil
}

// decodeOrigin decodes a discovery record of Dynamo in JSON: the origin of a rank's events. That is
// the publisher of the events of a worker rank of endpoint e, and its recovery target, the
// address to query for lost events; empty for none. The error names the field.
func decodeOrigin(data []byte, e Endpoint) (origin, error) {
	var r struct {
		Type  string `json:"type"`
		Topic string `json:"topic"`
		Scope struct {
			Kind     string       `json:"kind"`
			Endpoint endpointName `json:"endpoint"`
		} `json:"scope"`
		PublisherID uint64 `json:"publisher_id"`
		Metadata    struct {
			StateEndpoint endpointName `json:"kv_state_endpoint"`
			Worker        struct {
				ID   uint64 `json:"worker_id"`
				Rank uint32 `json:"dp_rank"`
			} `json:"worker"`
			PublisherID uint64 `json:"publisher_id"`
			Target      *struct {
				Transport struct {
					TCP string `json:"tcp"`
				} `json:"transport"`
			} `json:"recovery_target"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return origin{}, fmt.Errorf("event source: %w", err)
	}
	m := &r.Metadata
	switch {
	case r.Type != "EventSource":
		return origin{}, fmt.Errorf("event source: type: %.64q is not EventSource", r.Type)
	case r.Topic != topic:
		return origin{}, fmt.Errorf("event source: topic: %.64q is not %s", r.Topic, topic)
	case r.Scope.Kind != "endpoint" || !r.Scope.Endpoint.is(e) || !m.StateEndpoint.is(e):
		return origin{}, fmt.Errorf("event source: scope, kv_state_endpoint: not those of %s", e)
	case r.PublisherID != m.PublisherID:
		return origin{}, fmt.Errorf("event source: publisher_id: %d in one place, %d in the other", r.PublisherID, m.PublisherID)
	case m.Worker.ID == 0:
		return origin{}, fmt.Errorf("event source: worker_id: must not be 0")
	}
	o := origin{publisher: r.PublisherID, worker: kv.Worker{ID: kv.WorkerID(m.Worker.ID), Rank: kv.DPRank(m.Worker.Rank)}}
	if m.Target != nil {
		// The Source can query only TCP targets.
		o.target.address, o.target.path, _ = strings.Cut(m.Target.Transport.TCP, "/")
	}
	return o, nil
}
