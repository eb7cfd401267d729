package indexer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/api/shape"
	"github.com/blockyard-ai/blockyard/router/source"
)

// instance is a registered engine. Its ranks registered one by one.
type instance struct {
	model, group string
	blockSize    uint32
	ranks        map[uint32]source.EngineRank
}

// engine returns the description of an instance for the follower, which connects to the ZMQ events
// of its ranks. id is the instance id, which becomes the worker id.
func (i *instance) engine(id uint64) source.Engine {
	e := source.Engine{Worker: kv.WorkerID(id), Model: shape.ModelOf(i.model, i.group), BlockSize: i.blockSize}
	for _, rank := range slices.Sorted(maps.Keys(i.ranks)) {
		e.Ranks = append(e.Ranks, i.ranks[rank])
	}
	e.Card.Ranks = uint32(len(e.Ranks))
	return e
}

type registerRequest struct {
	InstanceID   *uint64 `json:"instance_id"`
	Endpoint     *string `json:"endpoint"`
	ModelName    *string `json:"model_name"`
	RoutingGroup string  `json:"routing_group"`
	BlockSize    *uint32 `json:"block_size"`
	DPRank       uint32  `json:"dp_rank"`
	Replay       string  `json:"replay_endpoint"`
}

// register answers POST /register: the router follows the ZMQ events of one more engine rank.
func (s *Server) register(w http.ResponseWriter, req *http.Request) {
	var q registerRequest
	if !s.Decode(w, req, maxBody, &q) || !s.Need(w, "instance_id", q.InstanceID != nil) || !s.Need(w, "endpoint", q.Endpoint != nil) ||
		!s.Need(w, "model_name", q.ModelName != nil) || !s.Need(w, "block_size", q.BlockSize != nil) {
		return
	}
	err := source.CheckEndpoint(*q.Endpoint)
	if err == nil && q.Replay != "" {
		err = source.CheckEndpoint(q.Replay)
	}
	switch {
	case err != nil:
		s.Fail(w, http.StatusBadRequest, fmt.Errorf("endpoint: %w", err))
		return
	case s.follower == nil:
		s.Fail(w, http.StatusServiceUnavailable, errors.New("the router follows no events (use_kv_events is off)"))
		return
	}
	if err := s.add(&q); err != nil {
		s.Fail(w, http.StatusConflict, err)
		return
	}
	s.OK(w, http.StatusCreated)
}

// add follows the rank of a registration, as a new instance or as one more rank of an instance. The
// error names the earlier registration or the worker that q contradicts, or is the follower's.
func (s *Server) add(q *registerRequest) error {
	id, group := *q.InstanceID, cmp.Or(q.RoutingGroup, shape.DefaultGroup)
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.instances[id]
	if old == nil {
		if err := s.checkNewLocked(id, *q.ModelName, group, *q.BlockSize); err != nil {
			return err
		}
		old = &instance{model: *q.ModelName, group: group, blockSize: *q.BlockSize}
	}
	_, taken := old.ranks[q.DPRank]
	switch {
	case old.model != *q.ModelName || old.group != group:
		return fmt.Errorf("instance %d is already registered for model=%s routing_group=%s", id, old.model, old.group)
	case taken:
		return fmt.Errorf("instance %d dp_rank %d already registered", id, q.DPRank)
	case old.blockSize != *q.BlockSize:
		return fmt.Errorf("block_size mismatch for model=%s routing_group=%s: existing=%d, requested=%d", old.model, old.group, old.blockSize, *q.BlockSize)
	}
	// A copy, because the instance must stay as it is when the follower refuses.
	next := *old
	next.ranks = maps.Clone(old.ranks)
	if next.ranks == nil {
		next.ranks = make(map[uint32]source.EngineRank)
	}
	next.ranks[q.DPRank] = source.EngineRank{Rank: kv.DPRank(q.DPRank), Events: *q.Endpoint, Replay: q.Replay}
	if err := s.follower.Follow(next.engine(id)); err != nil {
		return err
	}
	s.instances[id] = &next
	return nil
}

// checkNewLocked returns an error when a new instance has the id of another worker of the router, or
// a block size (in tokens) other than that of its model's instances. The caller holds s.mu.
func (s *Server) checkNewLocked(id uint64, model, group string, blockSize uint32) error {
	for _, w := range s.router.Workers() {
		if uint64(w.Worker.ID) == id {
			return fmt.Errorf("instance %d is a worker of the router already, from %s", id, cmp.Or(w.Card.Source, "agent"))
		}
	}
	for _, o := range s.instances {
		if o.model == model && o.group == group && o.blockSize != blockSize {
			return fmt.Errorf("block_size mismatch for model=%s routing_group=%s: existing=%d, requested=%d", model, group, o.blockSize, blockSize)
		}
	}
	return nil
}

// unregister answers POST /unregister: the router stops following an instance, or one rank of it.
func (s *Server) unregister(w http.ResponseWriter, req *http.Request) {
	var q struct {
		InstanceID   *uint64 `json:"instance_id"`
		ModelName    *string `json:"model_name"`
		RoutingGroup *string `json:"routing_group"`
		DPRank       *uint32 `json:"dp_rank"`
	}
	if !s.Decode(w, req, maxBody, &q) || !s.Need(w, "instance_id", q.InstanceID != nil) || !s.Need(w, "model_name", q.ModelName != nil) {
		return
	}
	if err := s.remove(*q.InstanceID, *q.ModelName, q.RoutingGroup, q.DPRank); err != nil {
		s.Fail(w, http.StatusNotFound, err)
		return
	}
	s.OK(w, http.StatusOK)
}

// remove ends the registration of an instance. With both group and rank it ends only that rank, and
// the instance ends with its last rank. A nil group matches every group.
func (s *Server) remove(id uint64, model string, group *string, rank *uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.instances[id]
	switch {
	case old == nil:
		return fmt.Errorf("instance %d not found", id)
	case old.model != model || group != nil && old.group != *group:
		return fmt.Errorf("instance %d is registered for model=%s routing_group=%s", id, old.model, old.group)
	}
	if group != nil && rank != nil {
		if _, known := old.ranks[*rank]; !known {
			return fmt.Errorf("instance %d dp_rank %d not found", id, *rank)
		}
		if len(old.ranks) > 1 {
			next := *old
			next.ranks = maps.Clone(old.ranks)
			delete(next.ranks, *rank)
			if err := s.follower.Follow(next.engine(id)); err != nil {
				return err
			}
			s.instances[id] = &next
			return nil
		}
	}
	delete(s.instances, id)
	s.follower.Unfollow(kv.WorkerID(id))
	return nil
}

// workerAnswer is one instance in GET /workers.
type workerAnswer struct {
	InstanceID   uint64                    `json:"instance_id"`
	Source       string                    `json:"source"`
	Status       string                    `json:"status"`
	ModelName    string                    `json:"model_name"`
	RoutingGroup string                    `json:"routing_group"`
	BlockSize    uint32                    `json:"block_size"`
	Endpoints    map[string]string         `json:"endpoints"`
	Listeners    map[string]listenerAnswer `json:"listeners"`
}

type listenerAnswer struct {
	Endpoint string `json:"endpoint"`
	Status   string `json:"status"`
}

// workers answers GET /workers: registered instances, and the router's other workers with their own
// source and without listeners. An instance is pending until the router has one of its ranks as a
// worker. The parameters model_name and routing_group filter the answer.
func (s *Server) workers(w http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	all := make(map[uint64]*workerAnswer)
	for id, i := range s.instances {
		a := &workerAnswer{InstanceID: id, Source: source.FromEngine, Status: "pending", ModelName: i.model, RoutingGroup: i.group,
			BlockSize: i.blockSize, Endpoints: map[string]string{}, Listeners: map[string]listenerAnswer{}}
		for rank, r := range i.ranks {
			a.Endpoints[fmt.Sprint(rank)] = r.Events
			a.Listeners[fmt.Sprint(rank)] = listenerAnswer{r.Events, "pending"}
		}
		all[id] = a
	}
	s.mu.Unlock()
	for _, known := range s.router.Workers() {
		id, rank := uint64(known.Worker.ID), fmt.Sprint(known.Worker.Rank)
		a := all[id]
		if a == nil {
			a = &workerAnswer{InstanceID: id, Source: cmp.Or(known.Card.Source, "agent"), ModelName: known.Model, RoutingGroup: shape.DefaultGroup,
				BlockSize: known.BlockSize, Endpoints: map[string]string{}, Listeners: map[string]listenerAnswer{}}
			all[id] = a
		}
		a.Status = "active"
		if l, ok := a.Listeners[rank]; ok {
			a.Listeners[rank] = listenerAnswer{l.Endpoint, "active"}
		}
	}
	query, out := req.URL.Query(), []*workerAnswer{}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		a := all[id]
		if query.Has("model_name") && query.Get("model_name") != a.ModelName ||
			query.Has("routing_group") && query.Get("routing_group") != a.RoutingGroup {
			continue
		}
		out = append(out, a)
	}
	s.Answer(w, http.StatusOK, out)
}
