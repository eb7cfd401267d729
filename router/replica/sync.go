package replica

import (
	"context"
	"crypto/rand"
	"encoding/binary"
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
	// batchDelay is the least time between two messages with changes, so that a busy router sends fewer of them. A change
	// that comes later leaves at once.
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
	stopAnswers, err := s.options.Bus.Answer(askSubject(s.cluster, s.router), func(question []byte) ([]byte, error) {
		return s.Answer(question, s.options.Mark)
	})
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
	var sent time.Time // of the last batch
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
			batch.Reset(batchDelay - time.Since(sent)) // at once when that is over
		case <-batch.C:
			sent = time.Now()
			s.publish(s.Outgoing(nil, sent))
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

// Join makes the bookings of other routers go to the account of an open model, and tells the other routers
// of the model. They hear of it before any booking of the model.
func (s *Sync) Join(m Model, to Scheduler) {
	s.State.Join(m, to)
	s.publish(s.hello(m))
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

// Name returns the name of a router as text: 16 hexadecimal digits.
func Name(router uint64) string { return fmt.Sprintf("%016x", router) }
