package load

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// Account keeps the active requests of all workers. Calls must not overlap. Make
// one with New.
type Account struct {
	expiry, provisional    time.Duration
	maxRequests, maxBlocks int
	ended                  func(id string)
	now                    func() time.Time
	start                  time.Time

	// requests are this router's own. Those of other routers are in foreign.
	requests map[string]*request
	foreign  foreign
	// bookings numbers the bookings, foreign ones included.
	bookings uint64
	journal  journal
	// confirmed has the requests that are not provisional, and provisionals the others.
	// Both are ordered by silence, the longest silence first.
	confirmed, provisionals list
	workers                 map[kv.Worker]*workload
	// slots is indexed by workload.slot, the number of a worker in the trie. A free slot
	// is nil.
	slots     []*workload
	freeSlots []int32
	prompts   trie

	members *index.Members
	columns Columns
	// renumbered is scratch memory of renumber: the new member number by the old one.
	renumbered []int32
	// decaying are the workers whose prefill changes with time.
	decaying []*workload
	stats    Stats
}

// workload is the load of one worker that has at least one active request.
type workload struct {
	worker kv.Worker
	// slot is the worker's index in Account.slots.
	slot int32
	// member is the worker's number in the aligned list, or notMember.
	member int32
	// decayingIndex is the position in Account.decaying, or notDecaying.
	decayingIndex int32
	// requests are the active requests of the worker, in order of arrival.
	requests list
	prefill  prefill
	// activeWeight is the sum of the weights of the distinct prompt blocks and the output
	// blocks; see one.
	activeWeight int64
	// awaiting counts the requests that have Awaited blocks.
	awaiting int
	surplus
}

const (
	notMember   = -1
	notDecaying = -1
)

// New returns an empty account. The error names the option that is out of range.
func New(o Options) (*Account, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("load account: %w", err)
	}
	o = o.withDefaults()
	return &Account{
		expiry:      o.Expiry,
		provisional: o.Provisional,
		maxRequests: o.MaxRequests,
		maxBlocks:   o.MaxBlocks,
		ended:       o.Ended,
		now:         o.Now,
		start:       o.Now(),
		requests:    make(map[string]*request),
		foreign:     newForeign(),
		journal:     journal{to: o.Journal},
		workers:     make(map[kv.Worker]*workload),
		members:     &index.Members{},
	}, nil
}

// clock returns the time since the account was made.
func (a *Account) clock() time.Duration { return a.now().Sub(a.start) }

// Add books a request on its worker and updates the worker's columns. Add does not keep r.
// The error is ErrDuplicateRequest or ErrTooManyRequests, or names the field that is out of
// range. After an error nothing has changed.
func (a *Account) Add(r *Request) error {
	if err := r.validate(); err != nil {
		return err
	}
	if _, ok := a.requests[r.ID]; ok {
		a.stats.Duplicates++
		return fmt.Errorf("request %q: %w", r.ID, ErrDuplicateRequest)
	}
	if err := a.room(r); err != nil {
		return err
	}
	booked := a.book(r)
	a.confirmedOrNot(booked).push(bySilence, booked) // from which the longest silent expires
	a.requests[booked.id] = booked
	a.stats.Added++
	a.journal.booked(booked, r)
	return nil
}

// room returns ErrTooManyRequests when a bound of the account leaves no room for r.
func (a *Account) room(r *Request) error {
	return a.roomWithin(r, len(a.requests)+a.foreign.len(), a.maxRequests, a.stats.Blocks, a.maxBlocks)
}

// roomWithin returns ErrTooManyRequests unless r keeps requests and blocks within their bounds.
func (a *Account) roomWithin(r *Request, requests, maxRequests, blocks, maxBlocks int) error {
	if requests < maxRequests && len(r.Sequence) <= maxBlocks-blocks {
		return nil
	}
	a.stats.Refused++
	return fmt.Errorf("request %q of %d blocks: %w: %d requests of %d, %d blocks of %d",
		r.ID, len(r.Sequence), ErrTooManyRequests, requests, maxRequests, blocks, maxBlocks)
}

// book returns a new request with its load on its worker. The caller adds it to a list by silence
// and to a map.
func (a *Account) book(r *Request) *request {
	now := a.clock()
	w := a.open(r.Worker)
	a.bookings++
	booked := &request{
		id: strings.Clone(r.ID), workload: w, bookingNumber: a.bookings, promptWeight: one,
		trackedBlocks: int32(len(r.Sequence)), expectedTokens: int32(r.ExpectedOutput), blockSize: int32(r.BlockSize),
		prefillTokens: int64(r.PrefillTokens), prefillDuration: r.PrefillDuration,
		awaited: r.Awaited, lastHeard: now, provisional: r.Provisional,
	}
	if booked.awaits() {
		w.awaiting++
	}
	if booked.prefillTokens == 0 {
		booked.prefillDuration = 0 // nothing runs down
	}
	if len(r.Sequence) > 0 {
		var added int64
		booked.lastNode, added = a.prompts.add(r.Sequence, w.slot)
		w.activeWeight += added
	}
	w.requests.push(byArrival, booked)
	w.prefill.add(booked, now)
	a.stats.Blocks += len(r.Sequence)
	a.updateColumns(w, now)
	return booked
}

// LastBooking returns the number of the latest booking. No other booking has that
// number, not even a later one of the same id.
func (a *Account) LastBooking() uint64 { return a.bookings }

// open returns the workload of a worker. A worker without requests gets a new one, with a free
// slot: the number that stands for the worker in the trie of prompts.
func (a *Account) open(worker kv.Worker) *workload {
	if w := a.workers[worker]; w != nil {
		return w
	}
	w := &workload{worker: worker, member: notMember, decayingIndex: notDecaying}
	if n := len(a.freeSlots); n > 0 {
		w.slot, a.freeSlots = a.freeSlots[n-1], a.freeSlots[:n-1]
		a.slots[w.slot] = w
	} else {
		w.slot = int32(len(a.slots))
		a.slots = append(a.slots, w)
	}
	if member, ok := a.members.Find(worker); ok {
		w.member = int32(member)
	}
	a.workers[worker] = w
	return w
}

// silenceList returns the list in which r is ordered by silence.
func (a *Account) silenceList(r *request) *list {
	if r.router != 0 {
		return &a.foreign.list
	}
	return a.confirmedOrNot(r)
}

// confirmedOrNot returns the list of this router's own requests that r belongs to.
func (a *Account) confirmedOrNot(r *request) *list {
	if r.provisional {
		return &a.provisionals
	}
	return &a.confirmed
}

// noteAlive records a call for a request: its silence begins again, and it is no longer provisional
// or a phantom. It returns the request and the time of clock. The error is ErrUnknownRequest.
func (a *Account) noteAlive(id string) (*request, time.Duration, error) {
	r := a.requests[id]
	if r == nil {
		return nil, 0, fmt.Errorf("request %q: %w", id, ErrUnknownRequest)
	}
	now := a.clock()
	a.silenceList(r).remove(bySilence, r)
	r.lastHeard, r.provisional = now, false
	a.confirmed.push(bySilence, r)
	if r.phantom() {
		r.workload.setPhantom(r, r.phantomChanges+1)
		a.journal.progressed(r)
	}
	return r, now, nil
}

// Touch records that a request is alive. The error is ErrUnknownRequest.
func (a *Account) Touch(id string) error {
	_, _, err := a.noteAlive(id)
	return err
}

// MarkPrefillCompleted removes the request's tokens from its worker's prefill load.
// A second call only records that the request is alive. The error is ErrUnknownRequest.
func (a *Account) MarkPrefillCompleted(id string) error {
	r, now, err := a.noteAlive(id)
	if err != nil {
		return err
	}
	if r.prefillTokens == 0 {
		return nil
	}
	r.workload.prefill.remove(r, now)
	a.updateColumns(r.workload, now)
	a.journal.progressed(r)
	return nil
}

// AddOutputBlock counts one more generated block of a request. decay is the new weight,
// 0 to 1, of the request's output blocks and of the prompt blocks that no other request of
// the worker uses. A nil decay computes the weight from the expected output: the fraction
// that is not generated yet. Without expected output a nil decay changes no weight. The
// error is ErrUnknownRequest, or ErrTooManyRequests for too many blocks, or says that decay
// is not in 0..1.
func (a *Account) AddOutputBlock(id string, decay *float64) error {
	if decay != nil && !(*decay >= 0 && *decay <= 1) {
		return fmt.Errorf("request %q decay fraction: %v is not in 0..1", id, *decay)
	}
	r, now, err := a.noteAlive(id)
	if err != nil {
		return err
	}
	if r.outputBlocks == math.MaxInt32 {
		return fmt.Errorf("request %q: %w: it has %d output blocks", id, ErrTooManyRequests, r.outputBlocks)
	}
	r.outputBlocks++
	if decay == nil {
		decay = r.remainingOutput()
	}
	before := r.outputWeight
	r.outputWeight += one
	if decay != nil { // all output blocks get the new weight
		weight := int32(math.Round(*decay * one)) // an integer, so that sums stay exact
		r.outputWeight = int64(r.outputBlocks) * int64(weight)
		a.weighPrompt(r, weight)
	}
	r.workload.activeWeight += r.outputWeight - before
	a.updateColumns(r.workload, now)
	a.journal.progressed(r)
	return nil
}

// weighPrompt gives the prompt blocks that no other request of the worker uses a new weight.
func (a *Account) weighPrompt(r *request, weight int32) {
	r.promptWeight = weight
	if r.lastNode != nil {
		r.workload.activeWeight += a.prompts.weigh(r.lastNode, r.workload.slot, weight)
	}
}

// Free ends a request with its prefill and returns the request's worker. ok is
// false when no such request is active, which is no error.
func (a *Account) Free(id string) (worker kv.Worker, ok bool) {
	r := a.requests[id]
	if r == nil {
		return kv.Worker{}, false
	}
	a.stats.Freed++
	a.leave(r, a.clock())
	return r.workload.worker, true
}

// Worker returns the worker of an active request. ok is false when no such request
// is active.
func (a *Account) Worker(id string) (worker kv.Worker, ok bool) {
	r := a.requests[id]
	if r == nil {
		return kv.Worker{}, false
	}
	return r.workload.worker, true
}

// FreeBooking ends the request with that LastBooking. ok is false when the booking
// has ended, even if another booking of the id is active.
func (a *Account) FreeBooking(id string, number uint64) (worker kv.Worker, ok bool) {
	if r := a.requests[id]; r == nil || r.bookingNumber != number {
		return kv.Worker{}, false
	}
	return a.Free(id)
}

// RemoveWorker ends every request of a worker that left, calls Options.Ended for each, and returns
// their number. Requests of other routers stay until their router ends them.
func (a *Account) RemoveWorker(worker kv.Worker) int {
	w := a.workers[worker]
	if w == nil {
		return 0
	}
	n, now := 0, a.clock()
	for r := w.requests.first; r != nil; {
		next := r.links[byArrival].next
		if r.router == 0 {
			a.end(r, now)
			a.ended(r.id)
			n++
		}
		r = next
	}
	a.stats.Abandoned += uint64(n)
	return n
}

// Expire ends every request that was silent for longer than the expiry, and returns
// their number.
func (a *Account) Expire() int {
	now := a.clock()
	unheard := a.expire(&a.provisionals, now, a.provisional)
	n := unheard + a.expire(&a.confirmed, now, a.expiry)
	a.stats.Unheard += uint64(unheard)
	a.stats.Expired += uint64(n)
	return n
}

// expire ends the requests of a list that were silent for longer than limit, and returns their
// number.
func (a *Account) expire(l *list, now, limit time.Duration) (n int) {
	for r := l.first; r != nil && now-r.lastHeard > limit; r = l.first {
		a.leave(r, now)
		a.ended(r.id)
		n++
	}
	return n
}

// end takes the load of a request off its worker and removes the request from the account. The
// workload of the worker goes with its last request.
func (a *Account) end(r *request, now time.Duration) {
	w := r.workload
	if r.router == 0 {
		delete(a.requests, r.id)
		a.journal.ended(r)
	} else {
		a.foreign.remove(r)
	}
	a.silenceList(r).remove(bySilence, r)
	a.stats.Blocks -= int(r.trackedBlocks)
	w.prefill.remove(r, now)
	if r.phantom() {
		w.phantoms--
	}
	if r.awaits() {
		w.awaiting--
	}
	w.requests.remove(byArrival, r)
	w.activeWeight -= r.outputWeight
	if r.lastNode != nil {
		w.activeWeight -= a.prompts.free(r.lastNode, w.slot)
	}
	a.updateColumns(w, now)
	if w.requests.n == 0 {
		delete(a.workers, w.worker)
		a.slots[w.slot] = nil
		a.freeSlots = append(a.freeSlots, w.slot)
	}
}

// Stats returns the gauges and counters.
func (a *Account) Stats() Stats {
	s := a.stats
	s.Requests, s.Foreign = len(a.requests)+a.foreign.len(), a.foreign.len()
	s.Provisional, s.Workers = a.provisionals.n, len(a.workers)
	s.DistinctBlocks, s.Nodes = a.prompts.blocks, a.prompts.nodes
	return s
}
