package schedule

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

var worker1, worker2 = kv.Worker{ID: 1}, kv.Worker{ID: 2}

func newScheduler(t testing.TB, o Options) *Scheduler {
	t.Helper()
	selector, err := NewCostSelector(DefaultConfig(), CostOptions{FirstOfEqual: true})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(DefaultConfig(), selector, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// request is a prompt of whole blocks of 4 tokens.
func request(id string, locals ...kv.LocalHash) *Request {
	return &Request{
		Prompt:   Prompt{Tokens: 4 * len(locals), BlockSize: 4},
		ID:       id,
		Book:     true,
		Sequence: kv.AppendSequence(nil, locals),
	}
}

func mustAdd(t testing.TB, s *Scheduler, r *Request, w kv.Worker, cached int) {
	t.Helper()
	if err := s.Add(r, w, cached); err != nil {
		t.Fatal(err)
	}
}

func checkLoad(t *testing.T, s *Scheduler, when string, w kv.Worker, blocks, tokens int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.active.load(w, nil)
	if l.ActiveBlocks != blocks || l.PrefillTokens != tokens {
		t.Errorf("%s: %d blocks, %d prefill tokens; want %d, %d", when, l.ActiveBlocks, l.PrefillTokens, blocks, tokens)
	}
}

func TestSharedBlocksCountOnce(t *testing.T) {
	s := newScheduler(t, Options{})
	mustAdd(t, s, request("a", 1, 2, 3), worker1, 0)
	checkLoad(t, s, "one request", worker1, 3, 12)
	mustAdd(t, s, request("b", 5), worker1, 0)
	checkLoad(t, s, "two apart", worker1, 4, 16)
	mustAdd(t, s, request("c", 1, 2, 3, 4), worker1, 16)
	checkLoad(t, s, "one more that extends the first", worker1, 5, 16)
	s.Free("b")
	checkLoad(t, s, "b freed", worker1, 4, 12)
	s.Free("c")
	checkLoad(t, s, "c freed", worker1, 3, 12)
	s.Free("a")
	checkLoad(t, s, "all freed", worker1, 0, 0)
	if len(s.active.workers) != 0 || s.active.byAge.Len() != 0 || s.active.blocks != 0 {
		t.Errorf("something is left of no requests: %+v", s.Stats())
	}
}

// TestNewBlocksAreCountedByPrefix: a block counts as shared only under the same
// prefix, and only on the worker that has it.
func TestNewBlocksAreCountedByPrefix(t *testing.T) {
	s := newScheduler(t, Options{})
	mustAdd(t, s, request("a", 1, 2, 4, 5), worker1, 0)
	matches := []index.Match{{Worker: worker1}, {Worker: worker2}}
	loads := s.PotentialLoads(request("", 1, 2, 3, 5), matches)
	if loads[0].DecodeBlocks != 6 || loads[1].DecodeBlocks != 4 {
		t.Errorf("potential decode blocks %d and %d, want 6 and 4", loads[0].DecodeBlocks, loads[1].DecodeBlocks)
	}
}

func TestProjectionGolden(t *testing.T) {
	s := newScheduler(t, Options{})
	mustAdd(t, s, request("a", 1, 2, 3), worker1, 0)
	if err := s.MarkPrefillCompleted("a"); err != nil {
		t.Fatal(err)
	}
	mustAdd(t, s, request("b", 1, 2, 4), worker2, 0)
	prompt := request("", 1, 2, 3, 5).Sequence
	for _, c := range []struct {
		w    kv.Worker
		want Load
	}{
		{worker1, Load{PrefillTokens: 0, ActiveBlocks: 3, NewBlocks: 1, Requests: 1}},
		{worker2, Load{PrefillTokens: 12, ActiveBlocks: 3, NewBlocks: 2, Requests: 1}},
		{kv.Worker{ID: 3}, Load{NewBlocks: 4}},
	} {
		if got := s.active.load(c.w, prompt); got != c.want {
			t.Errorf("load of %s: %+v, want %+v", c.w, got, c.want)
		}
	}
}

func TestPotentialDecodeBlocksGoldens(t *testing.T) {
	s := newScheduler(t, Options{})
	locals := make([]kv.LocalHash, 100)
	for i := range locals {
		locals[i] = kv.LocalHash(i + 1)
	}
	mustAdd(t, s, &Request{Prompt: Prompt{Tokens: 1600, BlockSize: 16}, ID: "a",
		Sequence: kv.AppendSequence(nil, locals)}, worker1, 0)
	unrelated := kv.AppendSequence(nil, []kv.LocalHash{201, 202})
	for _, c := range []struct {
		name     string
		tokens   int
		sequence []kv.SequenceHash
		want     int
	}{
		{"nothing tracked", 32, nil, 102},
		{"two new blocks", 32, unrelated, 102},
		{"two shared blocks", 32, kv.AppendSequence(nil, locals[:2]), 100},
		{"two new blocks and a partial one", 33, unrelated, 103},
	} {
		r := &Request{Prompt: Prompt{Tokens: c.tokens, BlockSize: 16}, Sequence: c.sequence}
		got := s.PotentialLoads(r, []index.Match{{Worker: worker1}})[0]
		if got.DecodeBlocks != c.want {
			t.Errorf("%s: %d decode blocks, want %d", c.name, got.DecodeBlocks, c.want)
		}
		if want := 1600 + c.tokens; got.PrefillTokens != want {
			t.Errorf("%s: %d prefill tokens, want %d", c.name, got.PrefillTokens, want)
		}
	}
}

func TestLifecycleErrors(t *testing.T) {
	s := newScheduler(t, Options{MaxRequests: 2, MaxBlocks: 4})
	matches := []index.Match{{Worker: worker1}}
	if _, _, err := s.Schedule(nil, request("a", 1), nil); !errors.Is(err, ErrNoCandidates) {
		t.Errorf("no workers: %v", err)
	}
	if _, _, err := s.Schedule(nil, request("a", 1), matches); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Schedule(nil, request("a", 2), matches); !errors.Is(err, ErrDuplicateRequest) {
		t.Errorf("a request twice: %v", err)
	}
	if err := s.Add(request("a", 2), worker2, 0); !errors.Is(err, ErrDuplicateRequest) {
		t.Errorf("a request added twice: %v", err)
	}
	if err := s.MarkPrefillCompleted("b"); !errors.Is(err, ErrUnknownRequest) {
		t.Errorf("prefill of an unknown request: %v", err)
	}
	for range 2 {
		if err := s.MarkPrefillCompleted("a"); err != nil {
			t.Errorf("prefill completed: %v", err)
		}
	}
	if !s.Free("a") || s.Free("a") {
		t.Error("free must end a request once and be harmless afterwards")
	}
	if _, _, err := s.Schedule(nil, request("big", 1, 2, 3, 4, 5), matches); err != nil {
		t.Errorf("a request too large to book must be routed all the same: %v", err)
	}
	mustAdd(t, s, request("c", 1), worker1, 0)
	mustAdd(t, s, request("d", 1), worker1, 0)
	if err := s.Add(request("e", 1), worker1, 0); !errors.Is(err, ErrTooManyRequests) {
		t.Errorf("a third request of two: %v", err)
	}
	if got := s.Stats(); got.Unbooked != 1 || got.Booked != 3 || got.Freed != 1 || got.ActiveRequests != 2 {
		t.Errorf("stats %+v", got)
	}
}

func TestBookingIsSeenByTheNextDecision(t *testing.T) {
	s := newScheduler(t, Options{})
	matches := []index.Match{{Worker: worker1}, {Worker: worker2}}
	var candidates []Candidate
	for i := range 4 {
		id := kv.LocalHash(10 * (i + 1))
		var chosen int
		var err error
		candidates, chosen, err = s.Schedule(candidates, request(fmt.Sprint(i), id, id+1), matches)
		if err != nil {
			t.Fatal(err)
		}
		if chosen != i%2 {
			t.Errorf("request %d went to worker %d, want the less loaded one", i, chosen+1)
		}
	}
	// Without booking, nothing changes.
	r := request("", 99)
	r.Book = false
	if _, _, err := s.Schedule(candidates, r, matches); err != nil {
		t.Fatal(err)
	}
	if got := s.Stats().ActiveRequests; got != 4 {
		t.Errorf("%d requests are booked, want 4", got)
	}
	s.RemoveWorker(worker1)
	if got := s.Stats(); got.ActiveRequests != 2 || got.Abandoned != 2 {
		t.Errorf("after the end of a worker: %+v", got)
	}
	checkLoad(t, s, "a removed worker", worker1, 0, 0)
}

// advance lets the time of the bubble pass.
func advance(d time.Duration) { <-time.After(d) }

func TestSilentRequestsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(t, Options{Expiry: time.Minute})
		mustAdd(t, s, request("silent", 1), worker1, 0)
		mustAdd(t, s, request("alive", 2), worker1, 0)
		advance(40 * time.Second)
		if err := s.MarkPrefillCompleted("alive"); err != nil {
			t.Fatal(err)
		}
		advance(40 * time.Second)
		s.Expire()
		checkLoad(t, s, "80 s later", worker1, 1, 0)
		advance(21 * time.Second)
		mustAdd(t, s, request("new", 3), worker1, 0)
		checkLoad(t, s, "booking expires others", worker1, 1, 4)
		if got := s.Stats(); got.Expired != 2 || got.ActiveRequests != 1 {
			t.Errorf("stats %+v, want 2 expired and 1 active", got)
		}
	})
}

// liveRequest is what the naive twin of the account keeps per request.
type liveRequest struct {
	worker  kv.Worker
	seq     []kv.SequenceHash
	prefill int
}

// countLoad is the load of w, counted from scratch, and the length of all its
// sequences.
func countLoad(requests map[string]liveRequest, w kv.Worker) (l Load, blocks int) {
	distinct := make(map[kv.SequenceHash]bool)
	for _, r := range requests {
		if r.worker != w {
			continue
		}
		l.Requests++
		l.PrefillTokens += r.prefill
		blocks += len(r.seq)
		for _, h := range r.seq {
			distinct[h] = true
		}
	}
	l.ActiveBlocks = len(distinct)
	return l, blocks
}

func drawBooking(t *rapid.T, id string) booking {
	locals := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) kv.LocalHash {
		return kv.LocalHash(rapid.IntRange(1, 2).Draw(t, "local"))
	}), 0, 5).Draw(t, "prompt")
	return booking{id: id, worker: rapid.SampledFrom([]kv.Worker{worker1, worker2}).Draw(t, "worker"),
		sequence: kv.AppendSequence(nil, locals), prefill: rapid.IntRange(0, 9).Draw(t, "prefill")}
}

// TestAccountModel: after any sequence of bookings and endings every worker's
// load is what counting its requests from scratch gives.
func TestAccountModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := newActive(100, 1000)
		twin := make(map[string]liveRequest)
		now := time.Unix(0, 0)
		id := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				b := drawBooking(t, id.Draw(t, "id"))
				_, exists := twin[b.id]
				if err := a.add(b, now); (err != nil) != exists {
					t.Fatalf("add of %s (exists: %v): %v", b.id, exists, err)
				}
				if !exists {
					twin[b.id] = liveRequest{b.worker, b.sequence, b.prefill}
				}
			},
			"prefill": func(t *rapid.T) {
				name := id.Draw(t, "id")
				l, exists := twin[name]
				if err := a.prefillCompleted(name, now); (err == nil) != exists {
					t.Fatalf("prefill of %s (exists: %v): %v", name, exists, err)
				}
				if l.prefill = 0; exists {
					twin[name] = l
				}
			},
			"free": func(t *rapid.T) {
				name := id.Draw(t, "id")
				if _, exists := twin[name]; a.free(name) != exists {
					t.Fatalf("free of %s, exists: %v", name, exists)
				}
				delete(twin, name)
			},
			"": func(t *rapid.T) {
				total := 0
				for _, w := range []kv.Worker{worker1, worker2} {
					want, blocks := countLoad(twin, w)
					total += blocks
					if got := a.load(w, nil); got != want {
						t.Fatalf("load of %s: %+v, want %+v", w, got, want)
					}
				}
				if a.blocks != total {
					t.Fatalf("%d blocks are booked, want %d", a.blocks, total)
				}
			},
		})
	})
}

func BenchmarkSchedule750Blocks8Workers(b *testing.B) {
	s := newScheduler(b, Options{})
	var matches []index.Match
	locals := make([]kv.LocalHash, 750)
	for i := range locals {
		locals[i] = kv.LocalHash(i + 1)
	}
	for n := range 8 {
		w := kv.Worker{ID: kv.WorkerID(n + 1)}
		matches = append(matches, index.Match{Worker: w, Hits: hits(uint32(n*90), 0, 0, 0)})
		mustAdd(b, s, request(fmt.Sprint(n), locals[:n*90]...), w, 0)
	}
	r := request("x", locals...)
	var candidates []Candidate
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if candidates, _, err = s.Schedule(candidates, r, matches); err != nil {
			b.Fatal(err)
		}
		s.Free("x")
	}
}
