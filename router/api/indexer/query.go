package indexer

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/api/shape"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/index"
)

// scoreAnswer is the answer to /query and /query_by_hash. All counts are tokens.
type scoreAnswer struct {
	// Scores has the device's tokens by instance and rank.
	Scores map[string]map[string]uint32 `json:"scores"`
	// Frequencies is always empty, as in Dynamo 1.6.
	Frequencies []int                     `json:"frequencies"`
	Instances   map[string]*shape.Summary `json:"instances"`
}

// add adds to the answer what one rank holds of a prompt: h has the blocks by tier, blockSize is in
// tokens. A rank without any block adds nothing. GPU, CPU and Disk of an instance are those of its
// best rank.
func (a *scoreAnswer) add(w kv.Worker, h index.Hits, blockSize uint32) {
	if h.Total() == 0 {
		return
	}
	id, rank := strconv.FormatUint(uint64(w.ID), 10), strconv.FormatUint(uint64(w.Rank), 10)
	s := a.Instances[id]
	if s == nil {
		s = &shape.Summary{}
		a.Instances[id] = s
	}
	if gpu := s.Add(rank, h, blockSize); gpu > 0 {
		if a.Scores[id] == nil {
			a.Scores[id] = map[string]uint32{}
		}
		a.Scores[id][rank] = gpu
	}
}

func newScoreAnswer() *scoreAnswer {
	return &scoreAnswer{Scores: map[string]map[string]uint32{}, Frequencies: []int{}, Instances: map[string]*shape.Summary{}}
}

// model returns the router's model for a query's model name and routing group. It returns false
// after it has answered the request itself: with 404 for an unknown model, or with an empty answer
// for a registered model whose workers have not joined.
func (s *Server) model(w http.ResponseWriter, name, group string) (*router.Model, bool) {
	m, err := s.router.Model(shape.ModelOf(name, group))
	if err == nil {
		return m, true
	}
	if s.registered(name, group) {
		s.Answer(w, http.StatusOK, newScoreAnswer())
		return nil, false
	}
	group = cmp.Or(group, shape.DefaultGroup)
	s.Fail(w, http.StatusNotFound, fmt.Errorf("no indexer for model=%s routing_group=%s", name, group))
	return nil, false
}

// registered reports whether an instance (an engine with its ranks) is registered for the model
// name and routing group.
func (s *Server) registered(name, group string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.instances {
		if shape.ModelOf(i.model, i.group) == shape.ModelOf(name, group) {
			return true
		}
	}
	return false
}

// partition returns MODEL:GROUP, the key of a dump, for the router's name of a model. A model that
// no instance has registered is in the group "default".
func (s *Server) partition(model string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.instances {
		if shape.ModelOf(i.model, i.group) == model {
			return i.model + ":" + i.group
		}
	}
	return model + ":" + shape.DefaultGroup
}

// query answers POST /query: how many tokens of a prompt each instance holds, given the prompt's
// token ids.
func (s *Server) query(w http.ResponseWriter, req *http.Request) {
	var q struct {
		TokenIDs     []uint32 `json:"token_ids"`
		ModelName    *string  `json:"model_name"`
		RoutingGroup string   `json:"routing_group"`
		LoRAName     string   `json:"lora_name"`
		CacheSalt    string   `json:"cache_salt"`
	}
	if !s.Decode(w, req, maxQueryBody, &q) || !s.Need(w, "token_ids", q.TokenIDs != nil) || !s.Need(w, "model_name", q.ModelName != nil) {
		return
	}
	m, ok := s.model(w, *q.ModelName, q.RoutingGroup)
	if !ok {
		return
	}
	out := newScoreAnswer()
	overlaps, err := m.Decide().Overlaps(&decide.Query{Tokens: q.TokenIDs, LoRA: q.LoRAName, Salt: q.CacheSalt})
	if err != nil && !errors.Is(err, decide.ErrNoWorkers) { // no worker is an empty answer
		s.Fail(w, http.StatusInternalServerError, err)
		return
	}
	for _, o := range overlaps {
		out.add(o.Worker, o.Hits, m.Key().BlockSize)
	}
	s.Answer(w, http.StatusOK, out)
}

// queryByHash answers POST /query_by_hash: as query, given the LocalHashes of the prompt's blocks.
func (s *Server) queryByHash(w http.ResponseWriter, req *http.Request) {
	var q struct {
		BlockHashes  []int64 `json:"block_hashes"`
		ModelName    *string `json:"model_name"`
		RoutingGroup string  `json:"routing_group"`
		CacheSalt    *string `json:"cache_salt"`
	}
	if !s.Decode(w, req, maxBody, &q) || !s.Need(w, "block_hashes", q.BlockHashes != nil) || !s.Need(w, "model_name", q.ModelName != nil) {
		return
	}
	if q.CacheSalt != nil {
		s.Fail(w, http.StatusBadRequest, errors.New("cache_salt is not accepted by /query_by_hash; block_hashes must already include the intended cache salt"))
		return
	}
	m, ok := s.model(w, *q.ModelName, q.RoutingGroup)
	if !ok {
		return
	}
	locals := make([]kv.LocalHash, len(q.BlockHashes))
	for i, h := range q.BlockHashes {
		locals[i] = kv.LocalHash(h)
	}
	var matches index.Matches
	m.Index().Match(&matches, locals, s.router.Config().Reading())
	out := newScoreAnswer()
	for i := range matches.Hits {
		h := &matches.Hits[i]
		out.add(matches.Members.List[h.Member].Worker, h.Hits, m.Key().BlockSize)
	}
	s.Answer(w, http.StatusOK, out)
}

// dump answers GET /dump.
func (s *Server) dump(w http.ResponseWriter, _ *http.Request) { s.Dump(w, s.router, s.partition) }
