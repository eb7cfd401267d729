package replica

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// bus is a Bus in memory. Messages take delay, and keep their order.
type bus struct {
	delay time.Duration

	mu          sync.Mutex
	subscribers map[chan packetAt]struct{}
	answers     map[string]func([]byte) ([]byte, error)
}

// packetAt is a message that arrives at a time.
type packetAt struct {
	at   time.Time
	data []byte
}

func newBus(delay time.Duration) *bus {
	return &bus{delay: delay, subscribers: make(map[chan packetAt]struct{}), answers: make(map[string]func([]byte) ([]byte, error))}
}

func (b *bus) Cluster() string { return "c" }
func (b *bus) Connected() bool { return true }

func (b *bus) Publish(_ string, data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for to := range b.subscribers {
		to <- packetAt{time.Now().Add(b.delay), data}
	}
	return nil
}

func (b *bus) Subscribe(_ string, messages chan<- []byte) (stop func(), dropped func() uint64, err error) {
	onWay, done := make(chan packetAt, 1<<12), make(chan struct{})
	var pump sync.WaitGroup
	pump.Go(func() {
		for {
			select {
			case p := <-onWay:
				time.Sleep(time.Until(p.at))
				select {
				case messages <- p.data:
				case <-done:
					return
				}
			case <-done:
				return
			}
		}
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscribers[onWay] = struct{}{}
	return func() {
		b.mu.Lock()
		delete(b.subscribers, onWay)
		b.mu.Unlock()
		close(done)
		pump.Wait()
	}, func() uint64 { return 0 }, nil
}

func (b *bus) Answer(subject string, answer func(request []byte) ([]byte, error)) (stop func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answers[subject] = answer
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.answers, subject)
	}, nil
}

func (b *bus) Request(_ context.Context, subject string, request []byte) ([]byte, error) {
	time.Sleep(2 * b.delay)
	b.mu.Lock()
	answer := b.answers[subject]
	b.mu.Unlock()
	if answer == nil {
		return nil, errors.New("nobody answers")
	}
	return answer(request)
}

// running is a Sync that runs, with a scheduler.
type running struct {
	*Sync
	scheduler *schedule.Scheduler
	stop      func()
}

func start(t *testing.T, b *bus) *running {
	t.Helper()
	r := &running{}
	r.Sync = New(Options{Bus: b, Mark: func(m *Mark) bool { return r.scheduler.Free(m.ID) }})
	members := &index.Members{List: []index.Member{{Worker: kv.Worker{ID: 1}}}}
	var err error
	r.scheduler, err = schedule.New(schedule.Options{Config: schedule.DefaultConfig(), Members: func() *index.Members { return members },
		Load: load.Options{Journal: r.Open(model)}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	r.Join(model, r.scheduler)
	r.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	return r
}

func (r *running) book(t *testing.T, id string) {
	t.Helper()
	if err := r.scheduler.Add(&schedule.Request{ID: id, Tokens: 16, BlockSize: 16}, kv.Worker{ID: 1}, 0); err != nil {
		t.Fatal(err)
	}
}

// knows reports whether the router knows a booking of another router.
func (r *running) knows(id string) (ok bool) {
	r.scheduler.WithAccount(func(a *load.Account) (released kv.Worker, ended bool) {
		_, ok = a.Owner(id)
		return released, false
	})
	return ok
}

// TestABookingLeavesAtOnce: unless another one has left within batchDelay. Then it waits for the rest of that time.
func TestABookingLeavesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const onWay = 100 * time.Microsecond
		b := newBus(onWay)
		one, two := start(t, b), start(t, b)
		defer two.stop()
		defer one.stop()
		time.Sleep(time.Second + tickEvery/2) // no tick within the next few milliseconds
		began := time.Now()
		for _, c := range []struct {
			at, leaves time.Duration
		}{{0, 0}, {batchDelay / 4, batchDelay}, {batchDelay / 2, batchDelay}, {5 * batchDelay, 5 * batchDelay}} {
			time.AfterFunc(time.Until(began.Add(c.at)), func() { one.book(t, c.at.String()) })
			for when, known := range map[time.Duration]bool{c.leaves + onWay - 1: false, c.leaves + onWay + 1: true} {
				time.AfterFunc(time.Until(began.Add(when)), func() {
					if two.knows(c.at.String()) != known {
						t.Errorf("a booking after %v: after %v another router knows it: %v", c.at, when, !known)
					}
				})
			}
		}
		time.Sleep(6 * batchDelay)
	})
}

// TestAMarkOfNobodysRequestIsAnsweredAtOnce: it waits for the bus alone.
func TestAMarkOfNobodysRequestIsAnsweredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(100 * time.Microsecond)
		first, second := start(t, b), start(t, b)
		defer first.stop()
		defer second.stop()
		mark := &Mark{Kind: MarkFree, Model: model.Name, ID: "nobody's"}
		if _, err := second.Forward(t.Context(), mark); !errors.Is(err, ErrNotHeard) {
			t.Errorf("a router that has just started: %v", err)
		}
		time.Sleep(lease)
		began := time.Now()
		found, err := second.Forward(t.Context(), mark)
		if took := time.Since(began); found || err != nil || took > time.Millisecond {
			t.Errorf("%v %v after %v, want no booking within a millisecond", found, err, took)
		}
	})
}

// TestAMarkMayOvertakeItsBooking: a client is faster than the messages between routers, also those of a
// router that has just started.
func TestAMarkMayOvertakeItsBooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(20 * time.Millisecond)
		second := start(t, b)
		defer second.stop()
		time.Sleep(lease)
		first := start(t, b)
		defer first.stop()
		first.book(t, "r1")
		found, err := second.Forward(t.Context(), &Mark{Kind: MarkFree, ID: "r1"})
		if !found || err != nil {
			t.Errorf("found %v, %v", found, err)
		}
		time.Sleep(lease)
		first.book(t, "r2")
		if found, err = second.Forward(t.Context(), &Mark{Kind: MarkFree, ID: "r2"}); !found || err != nil {
			t.Errorf("found %v, %v", found, err)
		}
		if s := second.Stats(); s.Forwarded != 2 || s.ForwardFailures != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestAMarkWithoutEchoFails: nobody can say that the request is unknown while the bus delivers nothing.
func TestAMarkWithoutEchoFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(0)
		r := start(t, b)
		defer r.stop()
		time.Sleep(lease)
		b.mu.Lock()
		clear(b.subscribers)
		b.mu.Unlock()
		if _, err := r.Forward(t.Context(), &Mark{Kind: MarkFree, ID: "r1"}); err == nil || !strings.Contains(err.Error(), "replica echo") {
			t.Errorf("error %v, want one of the echo", err)
		}
		if r.Stats().ForwardFailures != 1 {
			t.Errorf("%+v", r.Stats())
		}
	})
}
