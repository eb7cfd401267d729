package selection

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/api/shape"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/source"
	"github.com/blockyard-ai/blockyard/router/source/registry"
)

// replaceLocked makes r the record of its worker. It tells the router of the worker if r lacks
// nothing, and otherwise sets r.Reasons and has the worker of the record before leave. The caller
// holds s.mu.
func (s *Server) replaceLocked(r *record) {
	old := s.records[r.WorkerID]
	if r.Reasons = s.missing(&r.facts); len(r.Reasons) == 0 {
		if err := s.checkLocked(r, old); err != nil {
			r.Reasons = []string{"reconciliation failed: " + err.Error()}
		}
	}
	if len(r.Reasons) == 0 {
		if err := s.tell(r); err != nil {
			r.Reasons = []string{"reconciliation failed: " + err.Error()}
		}
	}
	r.told = len(r.Reasons) == 0
	if old != nil && old.told && !r.told {
		s.leaveLocked(old)
	}
	s.records[r.WorkerID] = r
}

// checkLocked returns an error when the worker of r contradicts other workers of its partition (a
// model in a routing group), or when the router has another worker with its id. old is its record
// before, nil without one. The caller holds s.mu.
func (s *Server) checkLocked(r, old *record) error {
	p := partition{r.ModelName, r.RoutingGroup}
	for _, o := range s.records {
		if o == old || !o.told || o.ModelName != p.model || o.RoutingGroup != p.group {
			continue
		}
		if *o.BlockSize != *r.BlockSize {
			return fmt.Errorf("block_size mismatch for model=%s routing_group=%s: existing=%d requested=%d", p.model, p.group, *o.BlockSize, *r.BlockSize)
		}
		if a, b := value(o.IsEagle, false), value(r.IsEagle, false); a != b {
			return fmt.Errorf("is_eagle mismatch for model=%s routing_group=%s: existing=%t requested=%t", p.model, p.group, a, b)
		}
	}
	if old != nil && old.told {
		return nil
	}
	for _, k := range s.router.Workers() {
		if uint64(k.Worker.ID) == r.WorkerID {
			return fmt.Errorf("worker %d is a worker of the router already, from %s", r.WorkerID, cmp.Or(k.Card.Source, "agent"))
		}
	}
	return nil
}

// errNoRegistry says that the router cannot be told of a worker.
var errNoRegistry = errors.New("the router takes no registrations")

// tell tells the router of the worker of r, which lacks nothing. With a follower the router
// follows the worker's events; without one the worker is registered for a while, and renew renews
// that. The error says that the follower or the registry refuses.
func (s *Server) tell(r *record) error {
	taints, err := kvevent.NewTaints(r.Taints)
	if err != nil {
		return err
	}
	first, n := r.ranks()
	model := shape.ModelOf(r.ModelName, r.RoutingGroup)
	if s.follower == nil {
		if s.registry == nil {
			return errNoRegistry
		}
		g := registration(r)
		if err := s.registry.Register(&g, registerFor); err != nil {
			return err
		}
		s.registry.AnnounceSoon()
		return nil
	}
	e := source.Engine{Worker: kv.WorkerID(r.WorkerID), Model: model, BlockSize: *r.BlockSize, Card: kvevent.ModelCard{
		Ranks: n, DeviceBlocks: value(r.TotalKVBlocks, 0), MaxBatchedTokens: value(r.MaxBatchedTokens, 0), Eagle: value(r.IsEagle, false), Taints: taints,
	}}
	for rank := first; rank < first+n; rank++ {
		e.Ranks = append(e.Ranks, source.EngineRank{Rank: kv.DPRank(rank), Events: r.events(rank), Replay: value(r.ReplayEndpoint, "")})
	}
	return s.follower.Follow(e)
}

// registration returns the registration of a worker without events.
func registration(r *record) registry.Registration {
	first, n := r.ranks()
	return registry.Registration{
		WorkerID: r.WorkerID, FirstRank: first, Ranks: n, Model: shape.ModelOf(r.ModelName, r.RoutingGroup), BlockSize: *r.BlockSize,
		DeviceBlocks: value(r.TotalKVBlocks, 0), MaxBatchedTokens: value(r.MaxBatchedTokens, 0), Taints: r.Taints, IsEagle: value(r.IsEagle, false),
	}
}

// leaveLocked tells the router that a worker left. The caller holds s.mu.
func (s *Server) leaveLocked(r *record) {
	if s.follower != nil {
		s.follower.Unfollow(kv.WorkerID(r.WorkerID))
	} else if s.registry.Unregister(r.WorkerID) {
		s.registry.AnnounceSoon()
	}
}

// renew renews the registrations of workers, which expire, when there is no follower. Run calls
// it at intervals. A refusal is a reason in the worker's record.
func (s *Server) renew() {
	if s.follower != nil || s.registry == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		if !r.told {
			continue
		}
		g := registration(r)
		if err := s.registry.Register(&g, registerFor); err != nil {
			r.told, r.Reasons = false, []string{"reconciliation failed: " + err.Error()}
		}
	}
}

// endpointOf returns the URL of a worker that is not registered here: that of its worker server,
// else that of its card, else nil.
func (s *Server) endpointOf(k *feed.Worker) *string {
	if s.endpoint != nil {
		if url := s.endpoint(k.Worker.ID); url != "" {
			return &url
		}
	}
	if k.Card.Endpoint == "" {
		return nil
	}
	return &k.Card.Endpoint
}
