package schedule

import (
	"errors"
	"fmt"
	"math"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// turn is the place of a request among those that wait.
type turn struct {
	// item orders the request. It waits, or its request arrives.
	item  *queue.Item
	class *queue.Class
	// mayWait is false for a request that has to get a worker now.
	mayWait bool
}

// heldError is the result of a decision for a request that is held: see queue.Item.Favourite.
type heldError struct{ worker kv.Worker }

// Error implements error. No caller of the package sees it.
func (e *heldError) Error() string { return fmt.Sprintf("waits for worker %s", e.worker) }

// hold makes s.probeItem wait for the worker of a heldError. It returns false for any other error.
func (s *Scheduler) hold(err error) bool {
	var held *heldError
	if !errors.As(err, &held) {
		return false
	}
	s.probeItem.SetFavourite(held.worker)
	return true
}

// checkWait returns a *heldError when waiting for the chosen, busy worker costs less than the best free
// worker. The request then waits in the queue, from where it can still go elsewhere, and not in the
// engine. Only a price says how long a wait is, and only a queue with MaxWait bounds it.
func (s *Scheduler) checkWait(in *Selection, member int, t turn) error {
	r := in.Request
	if !t.mayWait || !t.class.Enabled() || s.queue.Options().MaxWait == 0 || in.Outcome.Mode != ModePrice ||
		!r.TrackPrefill || r.Pinned != nil || !s.busy(t.class, member) {
		return nil
	}
	free := math.Inf(1)
	for k, cost := range s.cost.costs {
		if cost < free && !s.busy(t.class, in.At(k)) {
			free = cost
		}
	}
	if math.IsInf(free, 1) || in.Outcome.Price.Wait >= free {
		return nil
	}
	return &heldError{s.members.List[member].Worker}
}

// busy reports whether a member has too much pending prefill for requests of a class.
func (s *Scheduler) busy(class *queue.Class, member int) bool {
	return class.Busy(s.account.Columns().PrefillTokens[member], s.workers[member].MaxBatchedTokens)
}

// serveHeld decides for the held requests whose favourite has become free by time alone. They go before r,
// which arrives.
func (s *Scheduler) serveHeld(t *turn, r *Request) {
	if !s.queue.Held() {
		return
	}
	// The order of r among those that wait.
	t.item.Arrival, t.item.CachedTokens = s.seconds(s.now()), s.bestCached(r)
	free := func(class int, favourite kv.Worker) bool {
		member, ok := s.members.Find(favourite)
		return !ok || !s.busy(&s.queue.Options().Profile.Classes[class], member)
	}
	if s.queue.WakeHeld(free) {
		s.dispatch()
	}
}

// addClaims adds to the loads of a decision the claims of held requests that go before this one.
func (s *Scheduler) addClaims(in *Selection, t turn) {
	s.claims = s.claims[:0]
	if !s.queue.Held() || !in.Request.TrackPrefill {
		return
	}
	s.queue.Claims(t.item, func(favourite kv.Worker, tokens int) {
		member, ok := s.members.Find(favourite)
		if !ok {
			return
		}
		if len(s.claims) == 0 {
			s.claims = append(s.claims, make([]int64, len(s.members.List))...)
		}
		s.claims[member] += int64(tokens)
	})
	if len(s.claims) == 0 {
		return
	}
	prefill := append(s.claimedLoads.PrefillTokens[:0], in.Loads.PrefillTokens...)
	for m, tokens := range s.claims {
		prefill[m] += tokens
	}
	s.claimedLoads = *in.Loads
	s.claimedLoads.PrefillTokens = prefill
	in.Loads = &s.claimedLoads
}

// unclaimed returns the candidates that no earlier request waits for, if one waits for the chosen member and
// the member is free. The result is empty for a request that may take the member before them: one that never
// waits by its class, or that has waited as long as it may. A busy member is not taken: the request queues at
// its engine, at a price that includes the claims.
func (s *Scheduler) unclaimed(in *Selection, member int, t turn) []int32 {
	if len(s.claims) == 0 || s.claims[member] == 0 || !t.class.Enabled() || t.item.Overdue || s.busy(t.class, member) {
		return nil
	}
	s.others = s.others[:0]
	for k := range in.Len() {
		if m := in.At(k); s.claims[m] == 0 {
			s.others = append(s.others, int32(m))
		}
	}
	return s.others
}
