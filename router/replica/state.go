package replica

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/load"
)

const (
	// stateEvery is the period of states, which find lost messages and other differences.
	stateEvery = 500 * time.Millisecond
	// lease is the silence after which another router's bookings are dropped.
	lease = 3 * time.Second
	// maxStreams bounds the streams of a model, one for each other router. maxAsks bounds the
	// restatements in progress.
	maxStreams = 256
	maxAsks    = 16
	// pageBytes is the size at which a page ends.
	pageBytes = 256 << 10
)

// Stats is a snapshot of the gauges and counters. The metric names follow "blockyard_router_".
type Stats struct {
	Routers    int    `metric:"replica_routers" help:"Other routers whose bookings are known. A router counts for each of its models."`
	Sent       uint64 `metric:"replica_messages_sent" help:"Messages about own bookings sent to other routers."`
	Unsent     uint64 `metric:"replica_messages_unsent" help:"Messages about own bookings that could not be sent. The other routers ask again."`
	Overrun    uint64 `metric:"replica_changes_dropped" help:"Changes of own bookings dropped from a full queue. The other routers ask again."`
	Received   uint64 `metric:"replica_messages_received" help:"Messages of other routers about their bookings."`
	Malformed  uint64 `metric:"replica_messages_malformed" help:"Messages and questions of other routers that could not be read."`
	Overflowed uint64 `metric:"replica_messages_dropped" help:"Messages of other routers dropped from a full queue. They are asked for again."`
	Ignored    uint64 `metric:"replica_messages_ignored" help:"Messages of a model without a publisher here, or of too many routers."`
	Duplicates uint64 `metric:"replica_messages_duplicate" help:"Messages that came a second time."`
	Lost       uint64 `metric:"replica_messages_lost" help:"Messages of other routers that did not come."`
	Booked     uint64 `metric:"replica_bookings" help:"Bookings of other routers that were applied."`
	Refused    uint64 `metric:"replica_bookings_refused" help:"Bookings of other routers that were not applied, because the account was full or a field was out of range."`
	Expired    uint64 `metric:"replica_bookings_expired" help:"Bookings dropped because their router was silent."`
	// Restatements are questions to other routers for all their bookings of a model.
	Restatements        uint64 `metric:"replica_restatements" help:"Times that another router was asked for all its bookings of a model."`
	RestatementFailures uint64 `metric:"replica_restatement_failures" help:"Restatements that got no whole answer and are tried again."`
	Divergences         uint64 `metric:"replica_divergences" help:"States of other routers that differed although no message was missing."`
	Forwarded           uint64 `metric:"replica_marks_forwarded" help:"Marks of clients that the router of the booking got from here."`
	ForwardFailures     uint64 `metric:"replica_marks_failed" help:"Marks of clients that the router of the booking did not answer."`
}

// State is the part of the sync without input and output: what is to be sent, what arrived, and what to
// ask. Make one with NewState. It is safe for concurrent use. Its lock comes before a scheduler's.
type State struct {
	cluster string
	router  uint64
	wake    chan struct{}

	mu     sync.Mutex
	models map[Model]*modelState
	asks   int
	stated time.Time
	stats  Stats
}

// modelState has both directions of one model.
type modelState struct {
	model   Model
	journal *Journal
	to      Scheduler // nil until Join
	streams map[uint64]*stream
}

// Outgoing is a message to publish.
type Outgoing struct {
	Subject string
	Data    []byte
}

// NewState returns a state without models. router names this router and is not 0: no other router, and
// no earlier run of this one, has the same.
func NewState(cluster string, router uint64) *State {
	return &State{cluster: cluster, router: router, wake: make(chan struct{}, 1), models: make(map[Model]*modelState)}
}

// Open returns the journal for the account of a new model. Join must follow before bookings of other
// routers are applied.
func (s *State) Open(m Model) *Journal {
	s.mu.Lock()
	defer s.mu.Unlock()
	opened := &modelState{model: m, journal: newJournal(s.wake), streams: make(map[uint64]*stream)}
	s.models[m] = opened
	return opened.journal
}

// Join makes the bookings of other routers go to the account of an open model.
func (s *State) Join(m Model, to Scheduler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.models[m]; o != nil { // nil: the router is stopping
		o.to = to
	}
}

// Close forgets a model. It returns the message that makes other routers forget this router's bookings.
func (s *State) Close(m Model) (bye []Outgoing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.models[m]
	if o == nil {
		return nil
	}
	delete(s.models, m)
	s.stats.Overrun += o.journal.dropped
	return append(bye, s.stateOf(o, state{closing: true}, o.journal.lastNumber()))
}

// CloseAll closes all models.
func (s *State) CloseAll() (byes []Outgoing) {
	s.mu.Lock()
	models := slices.Collect(maps.Keys(s.models))
	s.mu.Unlock()
	for _, m := range models {
		byes = append(byes, s.Close(m)...)
	}
	return byes
}

func (s *State) stateOf(o *modelState, st state, number uint64) Outgoing {
	return Outgoing{bookingsSubject(s.cluster, s.router), appendMessage(nil, &message{router: s.router, model: o.model, number: number, state: &st})}
}

// ordered returns the models in a fixed order. The caller holds s.mu.
func (s *State) ordered() []*modelState {
	return slices.SortedFunc(maps.Values(s.models), func(a, b *modelState) int {
		return cmp.Or(strings.Compare(a.model.Name, b.model.Name), cmp.Compare(a.model.BlockSize, b.model.BlockSize))
	})
}

// Outgoing appends the messages with all changes that wait, and the states that are due.
func (s *State) Outgoing(dst []Outgoing, now time.Time) []Outgoing {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := now.Sub(s.stated) >= stateEvery
	if due {
		s.stated = now
	}
	for _, o := range s.ordered() {
		for more := true; more; {
			var bookings, progress message
			bookings, progress, more = o.journal.take()
			dst = s.appendOutgoing(dst, bookingsSubject(s.cluster, s.router), o, &bookings)
			dst = s.appendOutgoing(dst, progressSubject(s.cluster, s.router), o, &progress)
		}
		if st, number, ok := o.journal.state(); due && ok {
			dst = append(dst, s.stateOf(o, st, number))
		}
	}
	return dst
}

func (s *State) appendOutgoing(dst []Outgoing, subject string, o *modelState, m *message) []Outgoing {
	if len(m.changes) == 0 {
		return dst
	}
	m.router, m.model = s.router, o.model
	return append(dst, Outgoing{subject, appendMessage(nil, m)})
}

// Sent counts messages that were published or could not be.
func (s *State) Sent(ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ok {
		s.stats.Sent++
	} else {
		s.stats.Unsent++
	}
}

// Receive applies a message of another router. This router's own messages are ignored.
func (s *State) Receive(data []byte, now time.Time) {
	m, err := decodeMessage(data)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.stats.Malformed++
		return
	}
	if m.router == s.router {
		return
	}
	s.stats.Received++
	o := s.models[m.model]
	if o == nil || o.to == nil {
		s.stats.Ignored++
		return
	}
	st := o.streams[m.router]
	switch {
	case m.state != nil && m.state.closing:
		if st != nil {
			st.close()
			delete(o.streams, m.router)
		}
		return
	case st == nil && len(o.streams) >= maxStreams:
		s.stats.Ignored++
		return
	case st == nil:
		st = &stream{router: m.router, to: o.to, stats: &s.stats, early: make(map[uint64]*message), live: make(map[uint64]told)}
		st.next = m.number
		if m.state != nil {
			st.next++
		}
		if m.state == nil && m.number > 1 || m.state != nil && m.state.count > 0 {
			st.want(now) // it has bookings from before
		}
		o.streams[m.router] = st
	}
	st.receive(&m, now)
}

// Ask is a question to another router for a page of its bookings.
type Ask struct {
	// Subject and Data are the request. Pass the answer to Answered.
	Subject string
	Data    []byte
	stream  *stream
	model   Model
}

// Tick drops the bookings of silent routers, and returns the questions that are due. Call it some ten
// times in a second.
func (s *State) Tick(now time.Time) (due []Ask) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.ordered() {
		for _, router := range slices.Sorted(maps.Keys(o.streams)) {
			st := o.streams[router]
			if now.Sub(st.heard) > lease {
				s.stats.Expired += uint64(len(st.live))
				st.close()
				delete(o.streams, router)
				continue
			}
			st.tick(now)
			if !st.asking && !st.due.IsZero() && !now.Before(st.due) && s.asks < maxAsks {
				st.begin()
				s.asks++
				due = append(due, s.ask(o.model, st))
			}
		}
	}
	return due
}

func (s *State) ask(m Model, st *stream) Ask {
	return Ask{askSubject(s.cluster, st.router), appendQuery(nil, &query{model: m, from: st.from}), st, m}
}

// Answered applies the answer to a question, or its failure. It returns the question for the next page
// of the same router, if there is one.
func (s *State) Answered(a *Ask, answer []byte, err error, now time.Time) (next []Ask) {
	var p page
	if err == nil {
		p, err = decodePage(answer)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asks--
	o, st := s.models[a.model], a.stream
	if o == nil || o.streams[st.router] != st { // the router or the model has left meanwhile
		return nil
	}
	if err != nil {
		st.failed(now)
		return nil
	}
	if st.restate(&p, now) {
		return nil
	}
	s.asks++
	return append(next, s.ask(a.model, st))
}

// errUnknownModel answers a question about a model that this router does not have.
var errUnknownModel = errors.New("replica query: the model is not open")

// page returns this router's answer to a question for its bookings.
func (s *State) page(q *query) ([]byte, error) {
	s.mu.Lock()
	o := s.models[q.model]
	var to Scheduler
	if o != nil {
		to = o.to
	}
	s.mu.Unlock()
	if to == nil {
		return nil, errUnknownModel
	}
	p := page{number: o.journal.lastNumber()} // before the bookings, so that they have all changes up to it
	bytes := 0
	to.WithAccount(func(a *load.Account) (released kv.Worker, ok bool) {
		a.Bookings(q.from, func(b *load.Booking) bool {
			if bytes >= pageBytes {
				p.next = b.Number
				return false
			}
			c := change{booked, *b}
			c.Sequence = slices.Clone(b.Sequence[:min(len(b.Sequence), maxSequence)])
			p.bookings = append(p.bookings, c)
			bytes += 64 + len(b.ID) + 8*len(c.Sequence)
			return true
		})
		return released, false
	})
	return appendPage(nil, &p), nil
}

// Answer returns the answer to a question for bookings. The error says what is wrong with the question.
func (s *State) Answer(data []byte) ([]byte, error) {
	q, err := decodeQuery(data)
	if err != nil {
		s.mu.Lock()
		s.stats.Malformed++
		s.mu.Unlock()
		return nil, err
	}
	if q.mark != nil {
		return nil, fmt.Errorf("replica query: a mark of request %.64q, want a question for bookings", q.mark.ID)
	}
	return s.page(&q)
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

// Stats returns the gauges and counters.
func (s *State) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stats
	for _, o := range s.models {
		out.Routers += len(o.streams)
		o.journal.mu.Lock()
		out.Overrun += o.journal.dropped
		o.journal.mu.Unlock()
	}
	return out
}
