package selection

import (
	"net/http"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router"
	"github.com/blockyard-ai/blockyard/router/config"
	"github.com/blockyard-ai/blockyard/router/decide"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// workerLoad is the load of a worker's rank, with a prompt added or without.
type workerLoad struct {
	WorkerID      uint64 `json:"worker_id"`
	DPRank        uint32 `json:"dp_rank"`
	PrefillTokens int    `json:"potential_prefill_tokens"`
	DecodeBlocks  int    `json:"potential_decode_blocks"`
	Requests      int    `json:"active_requests"`
}

// workerLoads returns loads for an answer. A prompt counts by its full blocks: partial is 1
// when the loads have a partial one too.
func workerLoads(loads []schedule.PotentialLoad, partial int) []workerLoad {
	out := make([]workerLoad, len(loads))
	for i, l := range loads {
		out[i] = workerLoad{uint64(l.Worker.ID), uint32(l.Worker.Rank), l.PrefillTokens, l.DecodeBlocks - partial, l.Requests}
	}
	return out
}

// loads answers GET /loads: for each model the load of each worker, and how many requests wait.
func (s *Server) loads(w http.ResponseWriter, req *http.Request) {
	type modelLoads struct {
		ModelName        string       `json:"model_name"`
		RoutingGroup     string       `json:"routing_group"`
		Loads            []workerLoad `json:"loads"`
		PendingCount     int          `json:"pending_count"`
		PendingISLTokens int          `json:"pending_isl_tokens"`
	}
	out := []modelLoads{}
	for _, m := range s.models() {
		if !inScope(req, m.partition) {
			continue
		}
		// A prompt without tokens leaves the loads as they are.
		loads, err := m.Decide().GetPotentialLoads(&decide.Query{Hashed: &decide.Hashed{}})
		if err != nil {
			s.fail(w, err)
			return
		}
		if len(loads)+m.Decide().PendingCount() == 0 {
			continue // the model is about to go
		}
		out = append(out, modelLoads{m.model, m.group, workerLoads(loads, 0), m.Decide().PendingCount(), m.Decide().PendingTokens()})
	}
	s.Answer(w, http.StatusOK, out)
}

// promptRequest is a question about a prompt.
type promptRequest struct {
	scope
	prompt
	Override *config.Override `json:"router_config_override"`
}

// ask reads the body of a request that asks about a prompt, and returns its model and the prompt
// as a query. After an error it answers the request and returns false.
func (s *Server) ask(w http.ResponseWriter, req *http.Request) (m *router.Model, query *decide.Query, ok bool) {
	var q promptRequest
	if !s.Decode(w, req, maxBody, &q) {
		return nil, nil, false
	}
	m, _, err := s.find(&q.scope)
	if err == nil {
		if query, err = q.prompt.query(s.router, m, q.Override, false); err != nil {
			err = badRequest{err}
		}
	}
	if err != nil {
		s.fail(w, err)
	}
	return m, query, err == nil
}

// potentialLoads answers POST /potential_loads: the load that each worker would have with the
// prompt.
func (s *Server) potentialLoads(w http.ResponseWriter, req *http.Request) {
	m, query, ok := s.ask(w, req)
	if !ok {
		return
	}
	loads, err := m.Decide().GetPotentialLoads(query)
	if err != nil {
		s.fail(w, err)
		return
	}
	partial := 0 // blocks at the prompt's end that are not full, which do not count
	if query.Len()%int(m.Key().BlockSize) > 0 {
		partial = 1
	}
	s.Answer(w, http.StatusOK, workerLoads(loads, partial))
}

// workerScore is a rank's overlap with a prompt, in blocks. Host and Disk count the tiers
// before them too; the extensions do not.
type workerScore struct {
	WorkerID      uint64 `json:"worker_id"`
	DPRank        uint32 `json:"dp_rank"`
	Device        uint32 `json:"device_blocks"`
	Host          uint32 `json:"host_pinned_blocks"`
	Disk          uint32 `json:"disk_blocks"`
	HostExtension uint32 `json:"host_pinned_extension_blocks"`
	DiskExtension uint32 `json:"disk_extension_blocks"`
	// SharedBeyond is always null: the service asks no shared cache.
	SharedBeyond *uint32 `json:"shared_beyond_device_blocks"`
}

// overlapScores answers POST /overlap_scores: how many blocks of the prompt each worker holds, by
// tier. The counts of a tier include the tiers before it. The part about a shared cache is empty.
func (s *Server) overlapScores(w http.ResponseWriter, req *http.Request) {
	m, query, ok := s.ask(w, req)
	if !ok {
		return
	}
	overlaps, err := m.Decide().Overlaps(query)
	if err != nil {
		s.fail(w, err)
		return
	}
	type sharedCache struct {
		Enabled bool        `json:"enabled"`
		Hits    int         `json:"total_hit_blocks"`
		Ranges  [][2]uint32 `json:"ranges"`
		Error   *string     `json:"error"`
	}
	out := struct {
		BlockSize uint32        `json:"block_size"`
		Blocks    int           `json:"num_blocks"`
		Workers   []workerScore `json:"workers"`
		Shared    sharedCache   `json:"shared_cache"`
	}{m.Key().BlockSize, len(query.Hashed.Locals), make([]workerScore, len(overlaps)), sharedCache{Ranges: [][2]uint32{}}}
	for i, o := range overlaps {
		device, host, disk := o.Hits[kv.TierDevice], o.Hits[kv.TierHost], o.Hits[kv.TierDisk]+o.Hits[kv.TierExternal]
		out.Workers[i] = workerScore{uint64(o.Worker.ID), uint32(o.Worker.Rank), device, device + host, device + host + disk, host, disk, nil}
	}
	s.Answer(w, http.StatusOK, &out)
}
