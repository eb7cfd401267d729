package router

import (
	"cmp"
	"net/http"
	"slices"
)

// SourceStats are what a transport counts that is not in TransportStats, under
// names in snake case.
type SourceStats struct {
	// Name is the transport's, such as "dynamo".
	Name     string            `json:"name"`
	Counters map[string]uint64 `json:"counters"`
	Gauges   map[string]uint64 `json:"gauges"`
}

// SourceCounter is what a Transport implements besides that has SourceStats. Each
// name is there once.
type SourceCounter interface {
	SourceStats() []SourceStats
}

var _ SourceCounter = (*Registry)(nil)

// SourceStats is the SourceCounter's: those of the joined transports, ordered by
// name, the sums of those with one name.
func (r *Registry) SourceStats() []SourceStats {
	var all []SourceStats
	for _, t := range r.inner {
		counting, ok := t.(SourceCounter)
		if !ok {
			continue
		}
		for _, s := range counting.SourceStats() {
			i, found := slices.BinarySearchFunc(all, s.Name, func(have SourceStats, name string) int { return cmp.Compare(have.Name, name) })
			if !found {
				all = slices.Insert(all, i, s)
				continue
			}
			for name, v := range s.Counters {
				all[i].Counters[name] += v
			}
			for name, v := range s.Gauges {
				all[i].Gauges[name] += v
			}
		}
	}
	return all
}

// Sources are the transports' own counters, none when no transport has any.
func (r *Router) Sources() []SourceStats {
	if counting, ok := r.transport.(SourceCounter); ok {
		return counting.SourceStats()
	}
	return nil
}

func (a *api) sources(w http.ResponseWriter, _ *http.Request) {
	all := a.router.Sources()
	if all == nil {
		all = []SourceStats{}
	}
	a.answer(w, http.StatusOK, all)
}
