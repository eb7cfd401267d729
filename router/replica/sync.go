package replica

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Bus carries messages between routers. It may lose, repeat and reorder them.
type Bus interface {
	// Cluster separates deployments on one bus.
	Cluster() string
	// Connected reports whether messages may arrive.
	Connected() bool
	// Publish sends a message to all subscribers. An error means that it was not sent.
	Publish(subject string, data []byte) error
	// Subscribe delivers the messages of a subject until stop; dropped counts those that a slow
	// receiver lost.
	Subscribe(subject string, messages chan<- []byte) (stop func(), dropped func() uint64, err error)
	// Answer answers the requests of a subject, one at a time, until stop.
	Answer(subject string, answer func(request []byte) ([]byte, error)) (stop func(), err error)
	// Request returns the answer to a request. An error of the answering side is an error too.
	Request(ctx context.Context, subject string, request []byte) ([]byte, error)
}

// Options configure a Sync.
type Options struct {
	// Bus must be set.
	Bus Bus
	// Mark applies a mark of a client that came to another router, and reports whether this router has
	// booked the request. It must not forward the mark.
	Mark func(m *Mark) bool
	// Log may be nil.
	Log *zap.Logger
}

const (
	// batchDelay is how long a change waits for others, so that a busy router sends fewer messages.
	batchDelay = time.Millisecond
	tickEvery  = 20 * time.Millisecond
	// askTimeout bounds a question for a page, and a mark on its way.
	askTimeout = time.Second
	// maxReceived bounds the messages that wait to be applied. Each has at most about 512 KiB.
	maxReceived = 256
)

// Sync keeps the bookings of all routers of a cluster the same. Make one with New and run it with Run.
type Sync struct {
	*State
	options Options
	log     *zap.Logger
	results chan result
	// listening is since when, in nanoseconds since started, the bus has been connected.
	started   time.Time
	listening atomic.Int64
}

// result is the answer to a question, or its error.
type result struct {
	ask    Ask
	answer []byte
	err    error
}

// New returns a Sync without models. Its name among the routers is random.
func New(o Options) *Sync {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	var name [8]byte
	_, _ = rand.Read(name[:]) // never fails: crypto/rand ends the process instead
	return &Sync{State: NewState(o.Bus.Cluster(), binary.LittleEndian.Uint64(name[:])|1), options: o, log: o.Log, results: make(chan result), started: time.Now()}
}

// Name returns the name of this router as text.
func (s *State) Name() string { return Name(s.router) }

// Run exchanges bookings until ctx ends. Then it tells the other routers that this router's bookings
// have ended, and waits for its questions. The error says that the bus takes no subscription.
func (s *Sync) Run(ctx context.Context) error {
	messages := make(chan []byte, maxReceived)
	stop, dropped, err := s.options.Bus.Subscribe(allSubject(s.cluster), messages)
	if err != nil {
		return fmt.Errorf("replica sync: %w", err)
	}
	defer stop()
	stopAnswers, err := s.options.Bus.Answer(askSubject(s.cluster, s.router), s.answer)
	if err != nil {
		return fmt.Errorf("replica sync: %w", err)
	}
	defer stopAnswers()
	s.log.Info("bookings are shared with other routers", zap.String("router", s.Name()))
	var asks sync.WaitGroup
	defer asks.Wait()
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	ask := func(due []Ask) { // State bounds the questions in flight
		for _, a := range due {
			asks.Go(func() { s.ask(asking, a) })
		}
	}
	s.listening.Store(int64(time.Since(s.started)))
	ticker, batch := time.NewTicker(tickEvery), time.NewTimer(0)
	defer ticker.Stop()
	defer batch.Stop()
	for {
		select {
		case <-ctx.Done():
			s.publish(s.Outgoing(nil, time.Now()))
			s.publish(s.CloseAll())
			return nil
		case m := <-messages:
			s.Receive(m, time.Now())
		case r := <-s.results:
			ask(s.Answered(&r.ask, r.answer, r.err, time.Now()))
		case <-s.wake:
			batch.Reset(batchDelay)
		case <-batch.C:
			s.publish(s.Outgoing(nil, time.Now()))
		case <-ticker.C:
			now := time.Now() // the time of the tick is old after a pause of the process
			s.overflowed(dropped())
			if !s.options.Bus.Connected() {
				s.listening.Store(int64(now.Sub(s.started)))
			}
			s.publish(s.Outgoing(nil, now))
			ask(s.Tick(now))
		}
	}
}

// Leave closes a model, and tells the other routers.
func (s *Sync) Leave(m Model) { s.publish(s.Close(m)) }

// overflowed records how many messages the bus has dropped so far.
func (s *State) overflowed(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Overflowed = n
}

func (s *Sync) publish(all []Outgoing) {
	for _, o := range all {
		err := s.options.Bus.Publish(o.Subject, o.Data)
		s.Sent(err == nil)
		if err != nil { // the next message shows the other routers that this one is missing
			s.log.Debug("bookings are not sent", zap.Error(err))
		}
	}
}

// ask sends a question and passes the answer or the error to Run.
func (s *Sync) ask(ctx context.Context, a Ask) {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	r := result{ask: a}
	r.answer, r.err = s.options.Bus.Request(asking, a.Subject, a.Data)
	if r.err != nil {
		s.log.Debug("a router does not restate its bookings", zap.String("subject", a.Subject), zap.Error(r.err))
	}
	select {
	case s.results <- r:
	case <-ctx.Done():
	}
}

// markFound and markUnknown answer a mark.
const markFound, markUnknown = "found", "unknown"

// answer answers a question of another router: for bookings, or a mark.
func (s *Sync) answer(data []byte) ([]byte, error) {
	if q, err := decodeQuery(data); err == nil && q.mark != nil {
		if s.options.Mark != nil && s.options.Mark(q.mark) {
			return []byte(markFound), nil
		}
		return []byte(markUnknown), nil
	}
	return s.Answer(data)
}

// ErrNotHeard says that this router has not listened to others for long enough to know their requests.
var ErrNotHeard = errors.New("other routers have not been heard yet")

const (
	// overtaken is how long a mark waits for the booking that it has overtaken, and lookAgain the time
	// between two looks for the booking.
	overtaken = 250 * time.Millisecond
	lookAgain = 25 * time.Millisecond
)

// Forward passes a mark to the router that has booked the request, and reports whether that router
// found it. found is false when no other router has the request. The error says that a router did not
// answer: it has died, and its bookings end soon, or the bus is away.
func (s *Sync) Forward(ctx context.Context, m *Mark) (found bool, err error) {
	routers, known := s.owners(m.Model, m.ID)
	// A router that died is forgotten after a lease, and one that lives is heard within it.
	if !known && time.Since(s.started)-time.Duration(s.listening.Load()) < lease {
		return false, fmt.Errorf("request %q: %w", m.ID, ErrNotHeard)
	}
	found, err = s.pass(ctx, m, routers)
	for begin := time.Now(); !known && !found && err == nil && time.Since(begin) < overtaken; {
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-time.After(lookAgain):
		}
		if routers, known = s.owners(m.Model, m.ID); known {
			found, err = s.pass(ctx, m, routers)
		}
	}
	s.forwarded(found, err)
	return found, err
}

// pass passes a mark to routers, and reports whether one of them found the request.
func (s *Sync) pass(ctx context.Context, m *Mark, routers []uint64) (found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
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

// Name returns the name of a router as text: 16 hexadecimal digits.
func Name(router uint64) string { return fmt.Sprintf("%016x", router) }
