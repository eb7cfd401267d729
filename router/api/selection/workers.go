package selection

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/router/api/shape"
	"github.com/blockyard-ai/blockyard/router/feed"
)

// upsert answers POST /workers: it makes the body the record of a worker, new or not, and answers
// when the router knows the worker.
func (s *Server) upsert(w http.ResponseWriter, req *http.Request) {
	var q struct {
		WorkerID *uint64 `json:"worker_id"`
		scope
		facts
	}
	if !s.Decode(w, req, maxBody, &q) || !s.Need(w, "worker_id", q.WorkerID != nil) {
		return
	}
	r := &record{WorkerID: *q.WorkerID, ModelName: cmp.Or(q.ModelName, defaultModel), RoutingGroup: cmp.Or(q.RoutingGroup, shape.DefaultGroup), facts: q.facts}
	if r.Taints == nil {
		r.Taints = []string{}
	}
	if r.TopologyDomains == nil {
		r.TopologyDomains = map[string]string{}
	}
	s.mu.Lock()
	if s.records[r.WorkerID] == nil && len(s.records) >= maxWorkers {
		s.mu.Unlock()
		s.Fail(w, http.StatusConflict, fmt.Errorf("worker_id: %d workers are registered, limit %d", maxWorkers, maxWorkers))
		return
	}
	s.replaceLocked(r)
	s.mu.Unlock()
	s.answerJoined(w, req, http.StatusCreated, r)
}

// patch answers PATCH /workers/{worker_id}: it changes the fields of the body in the worker's
// record.
func (s *Server) patch(w http.ResponseWriter, req *http.Request) {
	id, ok := s.workerID(w, req)
	var changed facts
	if !ok || !s.Decode(w, req, maxBody, &changed) {
		return
	}
	s.mu.Lock()
	old := s.records[id]
	if old == nil {
		s.mu.Unlock()
		s.Fail(w, http.StatusNotFound, fmt.Errorf("worker %d not found", id))
		return
	}
	r := &record{WorkerID: id, ModelName: old.ModelName, RoutingGroup: old.RoutingGroup, facts: old.facts}
	r.merge(&changed)
	s.replaceLocked(r)
	s.mu.Unlock()
	s.answerJoined(w, req, http.StatusOK, r)
}

// delete answers DELETE /workers/{worker_id}: it removes the worker's record, and answers when
// the router has forgotten the worker.
func (s *Server) delete(w http.ResponseWriter, req *http.Request) {
	id, ok := s.workerID(w, req)
	if !ok {
		return
	}
	s.mu.Lock()
	r := s.records[id]
	delete(s.records, id)
	if r != nil && r.told {
		s.leaveLocked(r)
	}
	s.mu.Unlock()
	if r == nil {
		s.Fail(w, http.StatusNotFound, fmt.Errorf("worker %d not found", id))
		return
	}
	if r.told {
		s.await(req.Context(), func() bool {
			return !slices.ContainsFunc(s.router.Workers(), func(k feed.Worker) bool { return uint64(k.Worker.ID) == id && r.own(&k) })
		})
	}
	gone := *r
	gone.Lifecycle, gone.Reasons = unschedulable, nil
	s.Answer(w, http.StatusOK, &gone)
}

// workerID returns the worker in the path of a request. After an error it answers the request
// and returns false.
func (s *Server) workerID(w http.ResponseWriter, req *http.Request) (uint64, bool) {
	name := req.PathValue("worker_id")
	id, err := strconv.ParseUint(name, 10, 64)
	if err != nil {
		s.Fail(w, http.StatusBadRequest, fmt.Errorf("worker_id: %.64q is not a number in 0..%d", name, uint64(1<<64-1)))
	}
	return id, err == nil
}

// list returns the registered workers and the router's other workers, ordered by partition and
// id.
func (s *Server) list() []*record {
	all, known := s.router.Workers(), s.partitions()
	s.mu.Lock()
	out := make(map[uint64]*record, len(s.records))
	for id, r := range s.records {
		out[id] = r.view(all)
	}
	s.mu.Unlock()
	for i := range all {
		k := &all[i]
		id, rank := uint64(k.Worker.ID), uint32(k.Worker.Rank)
		switch o := out[id]; {
		case o == nil:
			p := known.of(k.Model)
			out[id] = &record{WorkerID: id, ModelName: p.model, RoutingGroup: p.group, Lifecycle: schedulable, facts: facts{
				Endpoint: s.endpointOf(k), BlockSize: &k.BlockSize, StartRank: &rank, Ranks: new(uint32(1)),
				Taints: append([]string{}, k.Card.Taints.List()...), TopologyDomains: map[string]string{},
			}, elsewhere: true}
		case o.elsewhere: // another rank
			*o.Ranks = rank - *o.StartRank + 1
		}
	}
	sorted := slices.AppendSeq(make([]*record, 0, len(out)), maps.Values(out)) // not nil: an empty list is []
	slices.SortFunc(sorted, func(a, b *record) int {
		return cmp.Or(strings.Compare(a.ModelName, b.ModelName), strings.Compare(a.RoutingGroup, b.RoutingGroup), cmp.Compare(a.WorkerID, b.WorkerID))
	})
	return sorted
}

// listWorkers answers GET /workers.
func (s *Server) listWorkers(w http.ResponseWriter, req *http.Request) {
	all := s.list()
	s.Answer(w, http.StatusOK, slices.DeleteFunc(all, func(r *record) bool { return !inScope(req, partition{r.ModelName, r.RoutingGroup}) }))
}

// ready answers GET /ready.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	out := struct {
		Ready       bool      `json:"ready"`
		Schedulable int       `json:"schedulable_workers"`
		Workers     []*record `json:"workers"`
	}{Workers: s.list()}
	for _, r := range out.Workers {
		if r.Lifecycle == schedulable {
			out.Schedulable++
		}
	}
	status := http.StatusServiceUnavailable
	if out.Ready = out.Schedulable > 0 && s.router.Started() == nil; out.Ready {
		status = http.StatusOK
	}
	s.Answer(w, status, &out)
}

const (
	// joinWait bounds how long an answer waits until the router has heard of a worker, or of
	// its end. joinPoll is how often it looks.
	joinWait = 2 * time.Second
	joinPoll = 2 * time.Millisecond
)

// await polls done until it returns true, for joinWait at most. It tells nobody whether it did.
func (s *Server) await(ctx context.Context, done func() bool) {
	ctx, cancel := context.WithTimeout(ctx, joinWait)
	defer cancel()
	tick := time.NewTicker(joinPoll)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// answerJoined answers with a record once the router knows its worker, so that a client may
// select it at once.
func (s *Server) answerJoined(w http.ResponseWriter, req *http.Request, status int, r *record) {
	s.mu.Lock()
	told := r.told
	s.mu.Unlock()
	if told {
		s.await(req.Context(), func() bool { return r.joined(s.router.Workers()) })
	}
	all := s.router.Workers()
	s.mu.Lock()
	out := r.view(all)
	s.mu.Unlock()
	s.Answer(w, status, out)
}
