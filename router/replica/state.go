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
)

const (
	// stateEvery is the period of states, which find lost messages and other differences.
	stateEvery = 500 * time.Millisecond
	// lease is the silence after which another router's bookings are dropped.
	lease = 3 * time.Second
	// maxStreams bounds the streams of a model, one for each other router. maxEarlyBytes bounds the
	// messages of all streams that came early. maxAsks bounds the restatements in progress.
	maxStreams    = 256
	maxEarlyBytes = 64 << 20
	maxAsks       = 16
	// pageBytes is the size at which a page ends.
	pageBytes = 256 << 10
)

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
	// openings counts the models that were opened, and earlyBytes the messages in all stream.early.
	openings   uint64
	earlyBytes int
	// echoes counts the echoes that were asked for, and heard those that came back: see barrier.
	echoes, heard uint64
	echoed        chan struct{} // closed at the next echo; nil while nobody waits
}

// modelState has both directions of one model.
type modelState struct {
	model   Model
	opening uint64
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
	s.openings++
	opened := &modelState{model: m, opening: s.openings, journal: newJournal(s.wake), streams: make(map[uint64]*stream)}
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
	m := &message{router: s.router, model: o.model, opening: o.opening, number: number, state: &st}
	return Outgoing{bookingsSubject(s.cluster, s.router), appendMessage(nil, m)}
}

// hello returns the state of a model, by which other routers learn of this one. Changes that wait to be
// sent say it too.
func (s *State) hello(m Model) []Outgoing {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.models[m]
	if o == nil { // the router is stopping
		return nil
	}
	st, number, ok := o.journal.state()
	if !ok {
		return nil
	}
	return []Outgoing{s.stateOf(o, st, number)}
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
			dst = s.appendOutgoing(dst, bookingsSubject, o, &bookings)
			dst = s.appendOutgoing(dst, progressSubject, o, &progress)
		}
		if st, number, ok := o.journal.state(); due && ok {
			dst = append(dst, s.stateOf(o, st, number))
		}
	}
	return dst
}

// appendOutgoing appends a message unless it has no changes.
func (s *State) appendOutgoing(dst []Outgoing, subject func(cluster string, router uint64) string, o *modelState, m *message) []Outgoing {
	if len(m.changes) == 0 {
		return dst
	}
	m.router, m.model, m.opening = s.router, o.model, o.opening
	return append(dst, Outgoing{subject(s.cluster, s.router), appendMessage(nil, m)})
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

// Receive applies a message of another router. Of this router's own messages it reads echoes alone.
func (s *State) Receive(data []byte, now time.Time) {
	var m message
	err := errOversized
	if len(data) <= maxReceivedBytes {
		m, err = decodeMessage(data)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, errOversized):
		s.stats.Oversized++
	case err != nil:
		s.stats.Malformed++
	case m.router == s.router:
		s.hear(m.echo)
	case m.echo == 0:
		s.stats.Received++
		m.bytes = len(data)
		s.receive(&m, now)
	}
}

// errOversized says that a message or a question has more than maxReceivedBytes.
var errOversized = fmt.Errorf("replica: more than %d bytes", maxReceivedBytes)

// receive applies a message to the stream of its router, which begins and ends here. The caller holds
// s.mu.
func (s *State) receive(m *message, now time.Time) {
	o := s.models[m.model]
	if o == nil || o.to == nil {
		s.stats.Ignored++
		return
	}
	st := o.streams[m.router]
	switch {
	case st != nil && m.opening < st.opening:
		s.stats.Outdated++
		return
	case st != nil && m.opening > st.opening: // the goodbye of the opening before is lost
		s.drop(o, st)
		st = nil
	}
	switch {
	case m.state != nil && m.state.closing:
		if st != nil {
			s.drop(o, st)
		}
		return
	case st == nil && len(o.streams) >= maxStreams:
		s.stats.Excess++
		return
	case st == nil:
		st = newStream(s, o, m, now)
		o.streams[m.router] = st
	}
	st.receive(m, now)
}

// drop forgets another router's bookings. The caller holds s.mu.
func (s *State) drop(o *modelState, st *stream) {
	st.close()
	delete(o.streams, st.router)
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
				s.drop(o, st)
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
	switch {
	case err == nil && len(answer) > maxReceivedBytes:
		err = errOversized
	case err == nil:
		p, err = decodePage(answer)
	}
	if err == nil && p.opening != a.stream.opening {
		err = fmt.Errorf("replica page: opening %d of the model, want %d", p.opening, a.stream.opening)
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
