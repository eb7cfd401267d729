package router

import (
	"context"
	"errors"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/replica"
)

// Booking is a booked request. Router is the name of the router that booked it: empty without
// router_replica_sync.
type Booking struct {
	load.Active
	Model  feed.ModelKey
	Router string
	// Own is true for a request that this router has booked.
	Own bool
}

// Bookings returns every booked request, in no order. With router_replica_sync these are the requests of
// all routers.
func (r *Router) Bookings() (all []Booking) {
	var active []load.Active
	for _, m := range r.models.all() {
		m.scheduler.WithAccount(func(a *load.Account) (released kv.Worker, ok bool) {
			active = a.Active(active[:0])
			return released, false
		})
		for _, a := range active {
			b := Booking{Active: a, Model: m.key, Own: a.Router == 0}
			if r.replicas != nil {
				b.Router = r.replicas.Name()
				if !b.Own {
					b.Router = replica.Name(a.Router)
				}
			}
			all = append(all, b)
		}
	}
	return all
}

// Mark applies a client's report of a booked request, and reports whether the request was found. With
// router_replica_sync a mark of another router's request goes to that router. The error says that the
// router did not answer.
func (r *Router) Mark(ctx context.Context, m *replica.Mark) (found bool, err error) {
	if r.applyMark(m) {
		return true, nil
	}
	if r.replicas == nil {
		return false, nil
	}
	found, err = r.replicas.Forward(ctx, m)
	if err != nil {
		return false, errors.Join(ErrPeerSilent, err)
	}
	return found, nil
}

// applyMark applies a mark of a request that this router has booked, and reports whether it has.
func (r *Router) applyMark(m *replica.Mark) bool {
	switch m.Kind {
	case replica.MarkPrefill:
		return r.MarkPrefillCompleted(m.Model, m.ID) == nil
	case replica.MarkOutput:
		return r.AddOutputBlock(m.Model, m.ID, m.Decay) == nil
	default:
		return r.Free(m.Model, m.ID)
	}
}
