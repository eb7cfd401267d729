package load

import (
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// Foreign names a booking of another router: the router, which is not 0, and the number of the
// booking there.
type Foreign struct{ Router, Number uint64 }

const (
	// MaxNumber bounds the numbers of foreign bookings.
	MaxNumber = 1 << 62
	// maxFollowed bounds the foreign numbers that raise this account's own numbers. Own numbers stay below
	// MaxNumber, so that other routers accept them, whatever number a faulty router sends.
	maxFollowed = MaxNumber / 2
)

// Booking is a booked request with its number and how far it is. Numbers of one account only grow. A new
// number exceeds those of the account's foreign bookings, except numbers above 2^61, which no account reaches
// by counting.
type Booking struct {
	Number uint64
	Request
	Progress
}

// Progress is how far a request is. A later Progress of a booking has a higher rank: see Before.
type Progress struct {
	// PrefillDone is true once the prompt is no prefill load.
	PrefillDone bool
	// OutputBlocks counts generated blocks. OutputWeight is the sum of their weights and
	// PromptWeight the weight of each own prompt block, both in units of 1/2^30 block.
	OutputBlocks int32
	OutputWeight int64
	PromptWeight int32
	// PhantomChanges counts how often the request became a phantom or was heard of again. It is odd
	// for a phantom.
	PhantomChanges uint32
	// MovedTokens are the prompt tokens that the request has to compute in place of requests that ended
	// before. They are not in Request.PrefillTokens. They only grow: see Awaited.
	MovedTokens int64
}

// Before reports whether o tells of something that p does not have.
func (p *Progress) Before(o *Progress) bool {
	return o.PrefillDone && !p.PrefillDone || o.OutputBlocks > p.OutputBlocks || o.PhantomChanges > p.PhantomChanges ||
		o.MovedTokens > p.MovedTokens
}

// Merge makes p tell of everything that o tells of.
func (p *Progress) Merge(o *Progress) {
	p.PrefillDone = p.PrefillDone || o.PrefillDone
	p.PhantomChanges = max(p.PhantomChanges, o.PhantomChanges)
	p.MovedTokens = max(p.MovedTokens, o.MovedTokens)
	if o.OutputBlocks > p.OutputBlocks {
		p.OutputBlocks, p.OutputWeight, p.PromptWeight = o.OutputBlocks, o.OutputWeight, o.PromptWeight
	}
}

// Journal is told of every change of an account's own bookings, in order. The account's caller holds
// its lock. The arguments are valid during the call.
type Journal interface {
	Booked(b *Booking)
	Progressed(number uint64, p Progress)
	Ended(number uint64)
}

// journal tells a Journal, and keeps the own bookings in the order of their numbers. Without a
// Journal it does nothing.
type journal struct {
	to Journal
	// ordered has all live own requests and some that have ended, whose ended is true.
	ordered []*request
	live    int
	scratch Booking
}

func (j *journal) booked(r *request, from *Request) {
	if j.to == nil {
		return
	}
	j.ordered = append(j.ordered, r)
	j.live++
	j.scratch = Booking{r.bookingNumber, *from, r.progress()}
	j.to.Booked(&j.scratch)
	j.scratch = Booking{} // keeps no prompt alive
}

func (j *journal) progressed(r *request) {
	if j.to != nil && r.router == 0 {
		j.to.Progressed(r.bookingNumber, r.progress())
	}
}

func (j *journal) ended(r *request) {
	if j.to == nil {
		return
	}
	r.ended = true
	if j.live--; len(j.ordered) > 2*j.live+64 { // so that each request is moved once on average
		j.ordered = slices.DeleteFunc(j.ordered, func(r *request) bool { return r.ended })
	}
	j.to.Ended(r.bookingNumber)
}

// progress returns how far a request is.
func (r *request) progress() Progress {
	return Progress{PrefillDone: r.prefillTokens == 0, OutputBlocks: r.outputBlocks, OutputWeight: r.outputWeight, PromptWeight: r.promptWeight,
		PhantomChanges: r.phantomChanges, MovedTokens: r.movedTokens}
}

// Bookings visits the account's own bookings in the order of their numbers, beginning with from, until
// visit returns false. Only an account with Options.Journal knows that order: another one visits none.
// A booking is valid during the call, and so is its Sequence.
func (a *Account) Bookings(from uint64, visit func(b *Booking) bool) {
	all := a.journal.ordered
	first := sort.Search(len(all), func(i int) bool { return all[i].bookingNumber >= from })
	var sequence []kv.SequenceHash
	for _, r := range all[first:] {
		if r.ended {
			continue
		}
		sequence = r.appendSequence(sequence[:0])
		b := Booking{r.bookingNumber, Request{ID: r.id, Worker: r.workload.worker, Sequence: sequence,
			PrefillTokens: int(max(0, r.prefillTokens-r.movedTokens)), PrefillDuration: r.bookedDuration()}, r.progress()}
		if !visit(&b) {
			return
		}
	}
}

// bookedDuration returns the expected duration of the prefill without the moved tokens.
func (r *request) bookedDuration() time.Duration {
	if r.movedTokens == 0 || r.prefillTokens == 0 {
		return r.prefillDuration
	}
	return time.Duration(float64(r.prefillDuration) * float64(r.prefillTokens-r.movedTokens) / float64(r.prefillTokens))
}

// appendSequence appends the tracked blocks of the prompt.
func (r *request) appendSequence(dst []kv.SequenceHash) []kv.SequenceHash {
	first := len(dst)
	for n := r.lastNode; n != nil && n.parent != nil; n = n.parent {
		for i := len(n.hashes) - 1; i >= 0; i-- {
			dst = append(dst, n.hashes[i])
		}
	}
	slices.Reverse(dst[first:])
	return dst
}

// foreign are the bookings of other routers.
type foreign struct {
	byKey map[Foreign]*request
	// byID has one of the bookings of each id.
	byID map[string]*request
	list list
	// blocks counts the tracked blocks of the bookings.
	blocks int
}

func newForeign() foreign {
	return foreign{byKey: make(map[Foreign]*request), byID: make(map[string]*request)}
}

func (f *foreign) len() int { return len(f.byKey) }

func (f *foreign) remove(r *request) {
	delete(f.byKey, Foreign{r.router, r.foreignNumber})
	f.blocks -= int(r.trackedBlocks)
	if f.byID[r.id] == r {
		delete(f.byID, r.id)
	}
}

// AddForeign books a request of another router, or records the progress of one that is booked. Such a
// request neither expires nor ends with its worker: only EndForeign ends it. A later booking of this
// account has a higher number than b, unless b.Number exceeds 2^61. The error is ErrTooManyRequests, or names
// the field that is out of range.
func (a *Account) AddForeign(router uint64, b *Booking) error {
	key := Foreign{router, b.Number}
	if a.foreign.byKey[key] != nil {
		a.ProgressForeign(key, &b.Progress)
		return nil
	}
	if b.Number > MaxNumber {
		return fmt.Errorf("booking number: %d is not in 0..%d", b.Number, uint64(MaxNumber))
	}
	if err := b.validate(); err != nil {
		return err
	}
	if err := a.roomForForeign(&b.Request); err != nil {
		return err
	}
	if b.Number <= maxFollowed {
		a.bookings = max(a.bookings, b.Number)
	}
	r := a.book(&b.Request)
	r.router, r.foreignNumber, r.provisional = router, b.Number, false
	a.foreign.list.push(bySilence, r)
	a.foreign.byKey[key], a.foreign.byID[r.id] = r, r
	a.foreign.blocks += int(r.trackedBlocks)
	a.ProgressForeign(key, &b.Progress)
	return nil
}

// roomForForeign returns ErrTooManyRequests when requests of other routers have three quarters of a
// bound of the account, or all requests have all of it. The last quarter is for own requests, whatever
// other routers send.
func (a *Account) roomForForeign(r *Request) error {
	if err := a.roomWithin(r, a.foreign.len(), a.maxRequests-a.maxRequests/4, a.foreign.blocks, a.maxBlocks-a.maxBlocks/4); err != nil {
		return err
	}
	return a.room(r)
}

// ProgressForeign records the progress of a request of another router and returns its worker. Old
// news changes nothing. ok is false when no such request is booked.
func (a *Account) ProgressForeign(key Foreign, p *Progress) (worker kv.Worker, ok bool) {
	r := a.foreign.byKey[key]
	if r == nil {
		return kv.Worker{}, false
	}
	w, now := r.workload, a.clock()
	r.lastHeard, r.suspected = now, false
	if p.PhantomChanges > r.phantomChanges {
		w.setPhantom(r, p.PhantomChanges)
	}
	if p.MovedTokens > r.movedTokens {
		w.prefill.move(r, p.MovedTokens-r.movedTokens)
	}
	if p.PrefillDone {
		w.prefill.remove(r, now)
	}
	if p.OutputBlocks > r.outputBlocks {
		w.activeWeight += p.OutputWeight - r.outputWeight
		r.outputBlocks, r.outputWeight = p.OutputBlocks, p.OutputWeight
		if p.PromptWeight != r.promptWeight {
			a.weighPrompt(r, p.PromptWeight)
		}
	}
	a.updateColumns(w, now)
	return w.worker, true
}

// EndForeign ends a request of another router and returns its worker. ok is false when no such request
// is booked.
func (a *Account) EndForeign(key Foreign) (worker kv.Worker, ok bool) {
	r := a.foreign.byKey[key]
	if r == nil {
		return kv.Worker{}, false
	}
	a.leave(r, a.clock())
	return r.workload.worker, true
}

// Owner returns the router that has booked a request of that id. ok is false when no other router has.
func (a *Account) Owner(id string) (router uint64, ok bool) {
	r := a.foreign.byID[id]
	if r == nil {
		return 0, false
	}
	return r.router, true
}

// Active is a booked request in a list of all of them. Router is 0 for the account's own.
type Active struct {
	Router, Number uint64
	ID             string
	Worker         kv.Worker
	PrefillTokens  int64
	OutputBlocks   int32
}

// Active appends every booked request to dst, in no order.
func (a *Account) Active(dst []Active) []Active {
	for _, r := range a.requests {
		dst = append(dst, Active{0, r.bookingNumber, r.id, r.workload.worker, r.prefillTokens, r.outputBlocks})
	}
	for key, r := range a.foreign.byKey {
		dst = append(dst, Active{key.Router, key.Number, r.id, r.workload.worker, r.prefillTokens, r.outputBlocks})
	}
	return dst
}
