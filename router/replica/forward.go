package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/load"
)

// ErrNotHeard says that this router has not listened to others for long enough to know their requests.
var ErrNotHeard = errors.New("other routers have not been heard yet")

// Forward passes a mark to the router that has booked the request, and reports whether that router
// found it. found is false when no other router has the request. The error says that a router did not
// answer: it has died, and its bookings end soon, or the bus is away.
func (s *Sync) Forward(ctx context.Context, m *Mark) (found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	routers, known := s.owners(m.Model, m.ID)
	// A router that died is forgotten after a lease, and one that lives is heard within it.
	if !known && time.Since(s.started)-time.Duration(s.listening.Load()) < lease {
		return false, fmt.Errorf("request %q: %w", m.ID, ErrNotHeard)
	}
	if !known {
		// The mark may have overtaken the message about the booking, or the first one of its router.
		if err = s.barrier(ctx); err == nil {
			routers, _ = s.owners(m.Model, m.ID)
		}
	}
	if err == nil {
		found, err = s.pass(ctx, m, routers)
	}
	s.forwarded(found, err)
	return found, err
}

// barrier waits until every message is applied that the bus had for this router at the call. An echo
// comes after them: this router's message to itself. The error says that no echo came before ctx ended.
func (s *Sync) barrier(ctx context.Context) error {
	n := s.nextEcho()
	err := s.options.Bus.Publish(echoSubject(s.cluster, s.router), appendMessage(nil, &message{router: s.router, echo: n}))
	if err != nil {
		return fmt.Errorf("replica echo: %w", err)
	}
	for {
		heard, next := s.waitEcho()
		if heard >= n {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("replica echo: %w", context.Cause(ctx))
		}
	}
}

// nextEcho returns the number of the next echo.
func (s *State) nextEcho() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.echoes++
	return s.echoes
}

// waitEcho returns the number of the last echo that came back, and a channel that ends with the next one.
func (s *State) waitEcho() (heard uint64, next <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.echoed == nil {
		s.echoed = make(chan struct{})
	}
	return s.heard, s.echoed
}

// hear records that echo n came back. The caller holds s.mu.
func (s *State) hear(n uint64) {
	if n > s.heard {
		s.heard = n
		if s.echoed != nil {
			close(s.echoed)
			s.echoed = nil
		}
	}
}

// owners returns the other router that has booked a request of that id. While no booking of the id is
// known here, known is false, and routers are all others. An empty model means any.
func (s *State) owners(model, id string) (routers []uint64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.models {
		if o.to == nil || model != "" && o.model.Name != model {
			continue
		}
		o.to.WithAccount(func(a *load.Account) (released kv.Worker, ok bool) {
			if router, has := a.Owner(id); has {
				routers, known = []uint64{router}, true
			}
			return released, false
		})
		if known {
			return routers, true
		}
		for router := range o.streams {
			if !slices.Contains(routers, router) {
				routers = append(routers, router)
			}
		}
	}
	return routers, false
}

// pass passes a mark to routers, and reports whether one of them found the request. ctx has a time limit.
func (s *Sync) pass(ctx context.Context, m *Mark, routers []uint64) (found bool, err error) {
	request := appendQuery(nil, &query{mark: m})
	type answer struct {
		found bool
		err   error
	}
	answers := make(chan answer, len(routers)) // maxStreams of each model at most
	for _, router := range routers {
		go func() {
			text, err := s.options.Bus.Request(ctx, askSubject(s.cluster, router), request)
			if err != nil {
				err = fmt.Errorf("request %q: router %s: %w", m.ID, Name(router), err)
			}
			answers <- answer{string(text) == markFound, err}
		}()
	}
	for range routers { // waits for every goroutine
		a := <-answers
		found, err = found || a.found, errors.Join(err, a.err)
	}
	if found {
		err = nil
	}
	return found, err
}

// forwarded counts a mark that another router found, or did not answer.
func (s *State) forwarded(found bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.stats.ForwardFailures++
	case found:
		s.stats.Forwarded++
	}
}
