package workers

import (
	"net/http"
	"strconv"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// State is what a server may be sent.
type State uint8

// States of a server.
const (
	// Starting: the server has never answered.
	Starting State = iota
	// Ready: the server takes requests.
	Ready
	// Draining: the server finishes its requests and gets no new ones.
	Draining
	// Unhealthy: the server answered once and does not answer now, or its last requests failed.
	Unhealthy
)

// String returns the name of the state.
func (s State) String() string {
	if names := [...]string{"starting", "ready", "draining", "unhealthy"}; int(s) < len(names) {
		return names[s]
	}
	return "state " + strconv.Itoa(int(s))
}

// Role is the part of a request that a server computes.
type Role uint8

// Roles of a server.
const (
	RoleBoth Role = iota
	RolePrefill
	RoleDecode
)

// String returns the name of the role.
func (r Role) String() string {
	if names := [...]string{"both", "prefill", "decode"}; int(r) < len(names) {
		return names[r]
	}
	return "role " + strconv.Itoa(int(r))
}

// Tri is a fact that may be unknown.
type Tri uint8

// Values of a Tri.
const (
	Unknown Tri = iota
	Yes
	No
)

// triOf returns the Tri of a known fact.
func triOf(yes bool) Tri {
	if yes {
		return Yes
	}
	return No
}

// Outcome is how a request to a server ended.
type Outcome uint8

// Outcomes of a request.
const (
	// OutcomeOK: the server answered.
	OutcomeOK Outcome = iota
	// OutcomeFailed: no connection, the connection ended before the first byte, or status 5xx.
	OutcomeFailed
	// OutcomeClient: the client ended the request or made a mistake. It says nothing of the server.
	OutcomeClient
)

// Where a worker was heard of, in Worker.Source.
const (
	FromFlag         = "flag"
	FromFile         = "file"
	FromDNS          = "dns"
	FromKubernetes   = "kubernetes"
	FromAgent        = "agent"
	FromRegistration = "registration"
	FromEvents       = "events"
)

// Model is a model or an adapter that a server serves.
type Model struct {
	// Name is the name that clients use.
	Name string
	// Base is the model that an adapter adapts; empty for a base model.
	Base string
	// MaxLen is the longest prompt with its answer, in tokens; 0 is unknown.
	MaxLen int
}

// EventSource is where one rank of a server publishes KV events.
type EventSource struct {
	Rank uint32
	// Endpoint and Replay are ZMQ addresses. Replay may be empty.
	Endpoint, Replay string
	// Topic is the topic of the events; empty receives all topics.
	Topic string
}

// Facts are what a server told of itself. The zero value of a field is unknown.
type Facts struct {
	// Engine is "vllm", "sglang" or empty.
	Engine  string
	Version string
	// BlockSize is the number of tokens in a block.
	BlockSize int
	// DeviceBlocks is the capacity of one rank's device.
	DeviceBlocks int
	// BatchedTokens is how many tokens a rank computes in a step.
	BatchedTokens int
	// Pairs is true when the server hashes pairs of tokens, for speculative decoding.
	Pairs bool
	// Render is true when the server renders prompts: /v1/chat/completions/render.
	Render bool
	// Tokenize is true when the server has /tokenize.
	Tokenize bool
	// CachedTokens says whether usage has prompt_tokens_details.
	CachedTokens Tri
	// PrefixCaching says whether the server keeps blocks of finished requests.
	PrefixCaching Tri
	// Events has the event endpoints, ordered by rank.
	Events []EventSource
}

// Worker is a server at one moment. It never changes after it was published.
type Worker struct {
	ID kv.WorkerID
	// URL is the base URL without a slash at the end, such as http://a:8000.
	URL string
	// Model is the name under which the router knows the worker: the Model of its decisions.
	Model string
	// Models are all models and adapters of the server, base models first.
	Models []Model
	Facts  Facts
	// Ranks is the number of data-parallel ranks, which begin with FirstRank.
	FirstRank, Ranks uint32
	// Pool and MaxBatchedTokens are as in Known.
	Pool             uint64
	MaxBatchedTokens int
	Role             Role
	State            State
	// Source says where the worker was heard of, such as FromFlag.
	Source string
	// Taints are the labels that its spec names.
	Taints []string
	// Since is when the state began.
	Since time.Time
	// Problem says why the worker is not ready; empty when it is.
	Problem string

	// key is the API key of the server.
	key string
}

// Authorize adds the server's API key to the headers of a request. It changes nothing for
// a server without a key.
func (w *Worker) Authorize(h http.Header) {
	if w.key != "" {
		h.Set("Authorization", "Bearer "+w.key)
	}
}

// serves returns the model or adapter of that name. It returns false when the worker does not serve
// the name.
func (w *Worker) serves(name string) (Model, bool) {
	for _, m := range w.Models {
		if m.Name == name {
			return m, true
		}
	}
	return Model{}, false
}

// Served is what a model name means.
type Served struct {
	// Model is the Model of the router's decisions.
	Model string
	// LoRA is the name of the adapter; empty for a base model.
	LoRA string
	// MaxLen is the smallest over the workers, in tokens; 0 is unknown.
	MaxLen int
}
