package indexer

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/index"
)

// scoreAnswer is the answer to /query and /query_by_hash. All counts are tokens.
type scoreAnswer struct {
	// Scores has the device's tokens by instance and rank.
	Scores map[string]map[string]uint32 `json:"scores"`
	// Frequencies is always empty, as in Dynamo 1.6.
	Frequencies []int                       `json:"frequencies"`
	Instances   map[string]*instanceSummary `json:"instances"`
}

// instanceSummary is what one instance holds. CPU and Disk count the tiers before them too.
type instanceSummary struct {
	LongestMatched uint32            `json:"longest_matched"`
	GPU            uint32            `json:"gpu"`
	DP             map[string]uint32 `json:"dp"`
	CPU            uint32            `json:"cpu"`
	Disk           uint32            `json:"disk"`
}

// add adds to the answer what one rank holds of a prompt: h has the blocks by tier, blockSize is in
// tokens. A rank without any block adds nothing. GPU, CPU and Disk of an instance are those of its
// best rank.
func (a *scoreAnswer) add(w kv.Worker, h index.Hits, blockSize uint32) {
	if h.Total() == 0 {
		return
	}
	tokens := func(tiers ...kv.Tier) uint32 {
		blocks := uint64(0)
		for _, t := range tiers {
			blocks += uint64(h[t])
		}
		return uint32(min(blocks*uint64(blockSize), math.MaxUint32))
	}
	id, rank := strconv.FormatUint(uint64(w.ID), 10), strconv.FormatUint(uint64(w.Rank), 10)
	gpu := tokens(kv.TierDevice)
	if gpu > 0 {
		if a.Scores[id] == nil {
			a.Scores[id] = map[string]uint32{}
		}
		a.Scores[id][rank] = gpu
	}
	s := a.Instances[id]
	if s == nil {
		s = &instanceSummary{DP: map[string]uint32{}}
		a.Instances[id] = s
	}
	s.DP[rank] = gpu
	s.GPU = max(s.GPU, gpu)
	s.CPU = max(s.CPU, tokens(kv.TierDevice, kv.TierHost))
	s.Disk = max(s.Disk, tokens(kv.TierDevice, kv.TierHost, kv.TierDisk, kv.TierExternal))
	s.LongestMatched = max(s.GPU, s.CPU, s.Disk)
}

func newScoreAnswer() *scoreAnswer {
	return &scoreAnswer{Scores: map[string]map[string]uint32{}, Frequencies: []int{}, Instances: map[string]*instanceSummary{}}
}

// model returns the router's model for a query's model name and routing group. It returns false
// after it has answered the request itself: with 404 for an unknown model, or with an empty answer
// for a registered model whose workers have not joined.
func (s *Server) model(w http.ResponseWriter, name, group string) (*router.Model, bool) {
	m, err := s.router.Model(modelOf(name, group))
	if err == nil {
		return m, true
	}
	if s.registered(name, group) {
		s.answer(w, http.StatusOK, newScoreAnswer())
		return nil, false
	}
	if group == "" {
		group = defaultGroup
	}
	s.fail(w, http.StatusNotFound, fmt.Errorf("no indexer for model=%s routing_group=%s", name, group))
	return nil, false
}

// registered reports whether an instance is registered for a model and group.
func (s *Server) registered(name, group string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.instances {
		if modelOf(i.model, i.group) == modelOf(name, group) {
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
		if modelOf(i.model, i.group) == model {
			return i.model + ":" + i.group
		}
	}
	return model + ":" + defaultGroup
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
	if !s.decode(w, req, maxQueryBody, &q) || !s.need(w, "token_ids", q.TokenIDs != nil) || !s.need(w, "model_name", q.ModelName != nil) {
		return
	}
	m, ok := s.model(w, *q.ModelName, q.RoutingGroup)
	if !ok {
		return
	}
	out := newScoreAnswer()
	overlaps, err := m.Decide().Overlaps(&decide.Query{Tokens: q.TokenIDs, LoRA: q.LoRAName, Salt: q.CacheSalt})
	if err != nil && !errors.Is(err, decide.ErrNoWorkers) { // no worker is an empty answer
		s.fail(w, http.StatusInternalServerError, err)
		return
	}
	for _, o := range overlaps {
		out.add(o.Worker, o.Hits, m.Key().BlockSize)
	}
	s.answer(w, http.StatusOK, out)
}

// queryByHash answers POST /query_by_hash: as query, given the LocalHashes of the prompt's blocks.
func (s *Server) queryByHash(w http.ResponseWriter, req *http.Request) {
	var q struct {
		BlockHashes  []int64 `json:"block_hashes"`
		ModelName    *string `json:"model_name"`
		RoutingGroup string  `json:"routing_group"`
		CacheSalt    *string `json:"cache_salt"`
	}
	if !s.decode(w, req, maxBody, &q) || !s.need(w, "block_hashes", q.BlockHashes != nil) || !s.need(w, "model_name", q.ModelName != nil) {
		return
	}
	if q.CacheSalt != nil {
		s.fail(w, http.StatusBadRequest, errors.New("cache_salt is not accepted by /query_by_hash; block_hashes must already include the intended cache salt"))
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
	s.answer(w, http.StatusOK, out)
}

// dumpWriteTimeout bounds how long a client may take to read a piece of a dump.
const dumpWriteTimeout = 30 * time.Second

// dump answers GET /dump: for each model the events that make an empty index equal to the
// router's. A dump without the closing brace was interrupted.
func (s *Server) dump(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	c := http.NewResponseController(w)
	defer func() { _ = c.SetWriteDeadline(time.Time{}) }() // the next request must not inherit it
	out := bufio.NewWriterSize(deadlined{w, c}, 64<<10)
	encoder := json.NewEncoder(out)
	var failed error
	separator := "{"
	for _, m := range s.router.Models("") {
		if failed != nil {
			break
		}
		key, err := json.Marshal(s.partition(m.Key().Name))
		if err != nil {
			failed = err
			break
		}
		_, failed = fmt.Fprintf(out, `%s%s:{"block_size":%d,"events":[`, separator, key, m.Key().BlockSize)
		separator = ","
		var event kvevent.StoredJSON
		var id uint64
		m.Decide().DumpEvents(func(e *kvevent.RouterEvent) bool {
			event.Set(e)
			event.Event.ID = id
			if id > 0 && failed == nil {
				failed = out.WriteByte(',')
			}
			id++
			if failed == nil {
				failed = encoder.Encode(&event)
			}
			return failed == nil
		})
		if failed == nil {
			_, failed = out.WriteString("]}")
		}
	}
	if separator == "{" && failed == nil {
		failed = out.WriteByte('{')
	}
	if failed == nil {
		_, failed = out.WriteString("}\n")
	}
	if failed == nil {
		failed = out.Flush()
	}
	if failed != nil {
		s.log.Debug("dump is not delivered", zap.Error(failed))
	}
}

// deadlined gives the client dumpWriteTimeout for each write.
type deadlined struct {
	http.ResponseWriter
	c *http.ResponseController
}

// Write implements io.Writer.
func (d deadlined) Write(b []byte) (int, error) {
	if err := d.c.SetWriteDeadline(time.Now().Add(dumpWriteTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	return d.ResponseWriter.Write(b)
}
