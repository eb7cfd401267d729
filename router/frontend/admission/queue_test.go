package admission_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/router/frontend/admission"
)

func newQueue(t *testing.T, l admission.Limits) *admission.Queue {
	t.Helper()
	q, err := admission.New(l)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// enter lets a request in that need not wait.
func enter(t *testing.T, q *admission.Queue) (release func()) {
	t.Helper()
	release, err := q.Enter(t.Context(), admission.Request{})
	if err != nil {
		t.Fatal(err)
	}
	return release
}

// wait has a request wait in the background. Its error is sent.
func wait(ctx context.Context, q *admission.Queue, r admission.Request) <-chan error {
	done := make(chan error, 1)
	go func() {
		release, err := q.Enter(ctx, r)
		if err == nil {
			release()
		}
		done <- err
	}()
	synctest.Wait()
	return done
}

func expectStats(t *testing.T, q *admission.Queue, want admission.Stats) {
	t.Helper()
	synctest.Wait()
	if got := q.Stats(); got != want {
		t.Errorf("stats %+v, want %+v", got, want)
	}
}

// A request waits until another ends, its client leaves, or its time is over.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, admission.Limits{Running: 1, Wait: time.Minute})
		release := enter(t, q)
		gone := errors.New("gone")
		ctx, leave := context.WithCancelCause(t.Context())
		left := wait(ctx, q, admission.Request{Bytes: 3})
		expectStats(t, q, admission.Stats{Running: 1, Waiting: 1, WaitingBytes: 3})
		leave(gone)
		if err := <-left; !errors.Is(err, gone) {
			t.Errorf("the client that leaves gets %v", err)
		}
		began := time.Now()
		if err := <-wait(t.Context(), q, admission.Request{}); !errors.Is(err, admission.ErrTimeout) || time.Since(began) != time.Minute {
			t.Errorf("%v after %s, want %v after a minute", err, time.Since(began), admission.ErrTimeout)
		}
		next := wait(t.Context(), q, admission.Request{})
		release()
		release()
		if err := <-next; err != nil {
			t.Errorf("the next request gets %v", err)
		}
		expectStats(t, q, admission.Stats{Refused: admission.Refused{Timeout: 1}})
	})
}

// A full queue refuses: its own tenant first, everybody when all is full.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, admission.Limits{Running: 1, Waiting: 3, TenantWaiting: 2, Bytes: 100, TenantBytes: 60})
		release := enter(t, q)
		refused := func(tenant string, bytes int64, want error) {
			t.Helper()
			if _, err := q.Enter(t.Context(), admission.Request{Tenant: tenant, Bytes: bytes}); !errors.Is(err, want) {
				t.Errorf("%s with %d bytes: %v, want %v", tenant, bytes, err, want)
			}
		}
		refused("a", 61, admission.ErrTenantFull)
		waiting := []<-chan error{wait(t.Context(), q, admission.Request{Tenant: "a", Bytes: 30}), wait(t.Context(), q, admission.Request{Tenant: "a", Bytes: 30})}
		refused("a", 0, admission.ErrTenantFull)
		refused("b", 41, admission.ErrFull)
		waiting = append(waiting, wait(t.Context(), q, admission.Request{Tenant: "b", Bytes: 40}))
		refused("c", 0, admission.ErrFull)
		release()
		for _, w := range waiting {
			if err := <-w; err != nil {
				t.Error(err)
			}
		}
		expectStats(t, q, admission.Stats{Refused: admission.Refused{Tenant: 2, Full: 2}})
	})
}

// Tenants that always wait get tokens by weight.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, admission.Limits{Running: 1})
		release := enter(t, q)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		served := make(map[string]int)
		for name, r := range map[string]admission.Request{"a": {Weight: 1, Tokens: 100}, "b": {Weight: 3, Tokens: 700}} {
			r.Tenant = name
			for range 100 {
				go func() {
					release, err := q.Enter(ctx, r)
					if err != nil {
						return
					}
					defer release()
					if served[name] += r.Tokens; served["a"]+served["b"] > 20000 {
						stop()
					}
				}()
			}
		}
		synctest.Wait()
		release()
		synctest.Wait()
		// The shares are exact within a quantum and a request.
		if got := served["b"] - 3*served["a"]; got < -3000 || got > 3000 {
			t.Errorf("served %v, want three times as much for b", served)
		}
		expectStats(t, q, admission.Stats{})
	})
}

// twin is a queue as its documentation describes it, round by round.
type twin struct {
	waiting []*twinRequest // in the order of arrival
	// order and deficit are the tenants of each priority, and what they may spend.
	order   map[uint32][]string
	deficit map[string]int
	paid    map[string]bool
}

type twinRequest struct {
	admission.Request
	id int
}

func key(priority uint32, tenant string) string { return fmt.Sprint(priority, tenant) }

func (w *twin) add(r *twinRequest) {
	if !slices.Contains(w.order[r.Priority], r.Tenant) {
		w.order[r.Priority] = append(w.order[r.Priority], r.Tenant)
	}
	w.waiting = append(w.waiting, r)
}

func (w *twin) remove(r *twinRequest) {
	w.waiting = slices.DeleteFunc(w.waiting, func(o *twinRequest) bool { return o == r })
	if w.first(r.Priority, r.Tenant) == nil {
		w.order[r.Priority] = slices.DeleteFunc(w.order[r.Priority], func(o string) bool { return o == r.Tenant })
		delete(w.deficit, key(r.Priority, r.Tenant))
		delete(w.paid, key(r.Priority, r.Tenant))
	}
}

func (w *twin) first(priority uint32, tenant string) (first *twinRequest) {
	for _, r := range w.waiting {
		if r.Priority == priority && r.Tenant == tenant && (first == nil || r.Order < first.Order) {
			first = r
		}
	}
	return first
}

func (w *twin) next() *twinRequest {
	highest := slices.MaxFunc(w.waiting, func(a, b *twinRequest) int { return int(a.Priority) - int(b.Priority) }).Priority
	for {
		tenant := w.order[highest][0]
		r, k := w.first(highest, tenant), key(highest, tenant)
		weight := 0
		for _, o := range w.waiting {
			if o.Priority == highest && o.Tenant == tenant {
				weight = o.Weight
			}
		}
		if !w.paid[k] {
			w.deficit[k] += 256 * weight
			w.paid[k] = true
		}
		if r.Tokens <= w.deficit[k] {
			w.deficit[k] -= r.Tokens
			w.remove(r)
			return r
		}
		w.paid[k] = false
		w.order[highest] = append(w.order[highest][1:], tenant)
	}
}

// The queue admits what its twin admits, in the same order.
func TestAsTwin(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		weights := map[string]int{"a": 1, "b": 2, "c": 5}
		synctest.Test(t, func(t *testing.T) {
			limit := rapid.IntRange(1, 3).Draw(rt, "running")
			q := newQueue(t, admission.Limits{Running: limit})
			model := &twin{order: map[uint32][]string{}, deficit: map[string]int{}, paid: map[string]bool{}}
			var running, expected []int
			releases, leaves := map[int]func(){}, map[int]context.CancelFunc{}
			admitted := make(chan func(), 1000)
			id := 0
			settle := func() {
				synctest.Wait()
				for len(admitted) > 0 {
					(<-admitted)()
				}
				slices.Sort(running)
				slices.Sort(expected)
				if !slices.Equal(running, expected) {
					t.Fatalf("running %v, want %v", running, expected)
				}
				if s := q.Stats(); s.Running != len(expected) || s.Waiting != len(model.waiting) {
					t.Fatalf("stats %+v, want %d and %d", s, len(expected), len(model.waiting))
				}
			}
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				switch kind := rapid.IntRange(0, 5).Draw(rt, "kind"); {
				case kind == 0 && len(running) > 0:
					one := rapid.SampledFrom(running).Draw(rt, "ends")
					running = slices.DeleteFunc(running, func(o int) bool { return o == one })
					expected = slices.DeleteFunc(expected, func(o int) bool { return o == one })
					releases[one]()
					if len(model.waiting) > 0 {
						expected = append(expected, model.next().id)
					}
				case kind == 1 && len(model.waiting) > 0:
					r := rapid.SampledFrom(model.waiting).Draw(rt, "leaves")
					model.remove(r)
					leaves[r.id]()
				default:
					id++
					tenant := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "tenant")
					r := &twinRequest{admission.Request{Tenant: tenant, Weight: weights[tenant],
						Priority: uint32(rapid.IntRange(0, 2).Draw(rt, "priority")),
						Order:    rapid.IntRange(-1, 1).Draw(rt, "order"),
						Tokens:   rapid.IntRange(1, 5000).Draw(rt, "tokens")}, id}
					if len(expected) < limit {
						expected = append(expected, r.id)
					} else {
						model.add(r)
					}
					ctx, cancel := context.WithCancel(t.Context())
					leaves[r.id] = cancel
					go func() {
						if release, err := q.Enter(ctx, r.Request); err == nil {
							admitted <- func() { running = append(running, r.id); releases[r.id] = release }
						}
					}()
				}
				settle()
			}
			for _, leave := range leaves {
				leave()
			}
			synctest.Wait()
		})
	})
}

func TestValidate(t *testing.T) {
	for name, l := range map[string]admission.Limits{
		"running": {}, "waiting": {Running: 1, Waiting: -1}, "bytes": {Running: 1, TenantBytes: -1}, "wait": {Running: 1, Wait: -1},
	} {
		if _, err := admission.New(l); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
