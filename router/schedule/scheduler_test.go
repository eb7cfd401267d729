package schedule

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
)

func newScheduler(t *testing.T, change func(*Options)) *Scheduler {
	t.Helper()
	o := Options{Config: with(func(c *Config) { c.Tie = TieFirst })}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// blocks are block hashes with these numbers.
func blocks(numbers ...kv.SequenceHash) []kv.SequenceHash { return numbers }

// TestAccountCalls: the errors and the idempotence of the calls for one request.
func TestAccountCalls(t *testing.T) {
	s, members := newScheduler(t, nil), fleet(1)
	r := &Request{ID: "a", Book: true, Tokens: 40, BlockSize: 16, TrackPrefill: true, Members: members, Sequence: blocks(1, 2)}
	if result, err := s.Schedule(t.Context(), r); err != nil || !result.Booked || result.PotentialBlocks != 3 {
		t.Fatalf("%+v, %v", result, err)
	}
	if _, err := s.Schedule(t.Context(), r); !errors.Is(err, load.ErrDuplicateRequest) {
		t.Errorf("scheduled twice: %v", err)
	}
	if err := s.Add(r, members.List[0].Worker, 0); !errors.Is(err, load.ErrDuplicateRequest) {
		t.Errorf("added twice: %v", err)
	}
	half := 0.5
	for name, err := range map[string]error{
		"prefill": s.MarkPrefillCompleted("a"), "again": s.MarkPrefillCompleted("a"), "touch": s.Touch("a"), "output": s.AddOutputBlock("a", &half),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	loads, err := s.PotentialLoads(nil, &Request{Tokens: 16, BlockSize: 16, TrackPrefill: true, Members: members})
	if want := (PotentialLoad{members.List[0].Worker, 16, 3, 1}); err != nil || loads[0] != want {
		t.Errorf("%+v (%v), want %+v: half of 2 blocks, half an output block, a new one", loads, err, want)
	}
	if !s.Free("a") || s.Free("a") {
		t.Error("free is not idempotent")
	}
	for name, err := range map[string]error{
		"prefill": s.MarkPrefillCompleted("a"), "touch": s.Touch("a"), "output": s.AddOutputBlock("a", nil),
	} {
		if !errors.Is(err, load.ErrUnknownRequest) {
			t.Errorf("%s of a freed request: %v", name, err)
		}
	}
}

// TestPotentialLoadGoldens: the projection of [1,2,3,5] on a worker that runs
// [1,2,3] with half an output block, and on one that runs [1,2,4]; and blocks
// after admission for prompts with and without tracked blocks.
func TestPotentialLoadGoldens(t *testing.T) {
	s, members := newScheduler(t, nil), fleet(2)
	a := &Request{ID: "a", Tokens: 12, BlockSize: 4, TrackPrefill: true, Members: members, Sequence: blocks(1, 2, 3)}
	b := &Request{ID: "b", Tokens: 12, BlockSize: 4, TrackPrefill: true, Members: members, Sequence: blocks(1, 2, 4)}
	half := 0.5
	if err := errors.Join(s.Add(a, members.List[0].Worker, 0), s.Add(b, members.List[1].Worker, 0),
		s.MarkPrefillCompleted("a"), s.AddOutputBlock("a", &half)); err != nil {
		t.Fatal(err)
	}
	r := &Request{Tokens: 16, BlockSize: 4, Members: members, Sequence: blocks(1, 2, 3, 5)}
	loads, err := s.PotentialLoads(nil, r)
	want := []PotentialLoad{{members.List[0].Worker, 0, 2 + 1, 1}, {members.List[1].Worker, 12, 3 + 2, 1}}
	if err != nil || !slices.Equal(loads, want) {
		t.Errorf("%+v (%v), want %+v", loads, err, want)
	}
	r.TrackPrefill, r.Hits = true, []index.Hit{{Member: 1, Hits: hits(1, 2, 0, 0)}}
	loads, err = s.PotentialLoads(loads[:0], r)
	want[0].PrefillTokens, want[1].PrefillTokens = 16, 12+16-10
	if err != nil || !slices.Equal(loads, want) {
		t.Errorf("tracked: %+v (%v), want %+v", loads, err, want)
	}
	for _, c := range []struct {
		tokens, tracked, shared int
		want                    int
	}{{32, 0, 0, 102}, {32, 2, 0, 102}, {32, 2, 2, 100}, {33, 2, 0, 103}} {
		r := &Request{Tokens: c.tokens, BlockSize: 16, Sequence: make([]kv.SequenceHash, c.tracked)}
		if got := potentialBlocks(r, 100, int32(c.shared)); got != c.want {
			t.Errorf("%+v: %d blocks", c, got)
		}
	}
}

// TestWithoutRoomARequestIsRoutedAllTheSame: and the one that could not be booked
// is counted.
func TestWithoutRoomARequestIsRoutedAllTheSame(t *testing.T) {
	s := newScheduler(t, func(o *Options) { o.Load.MaxRequests = 1 })
	for i, want := range []bool{true, false} {
		r := &Request{ID: fmt.Sprint(i), Book: true, Tokens: 1, BlockSize: 1, Members: fleet(1)}
		if got, err := s.Schedule(t.Context(), r); err != nil || got.Booked != want {
			t.Errorf("request %d: %+v, %v", i, got, err)
		}
	}
	if got := s.Stats(); got.Unbooked != 1 || got.Load.Requests != 1 {
		t.Errorf("stats %+v", got)
	}
}

// TestModelledPrefillShrinksWithTime: the model is asked for what is not cached.
func TestModelledPrefillShrinksWithTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(t, func(o *Options) {
			o.PrefillDuration = func(w kv.Worker, tokens, cached int) time.Duration {
				if w.ID != 1 || tokens != 100 || cached != 20 {
					t.Errorf("worker %s, %d tokens, %d cached", w, tokens, cached)
				}
				return 10 * time.Second
			}
		})
		members := fleet(1)
		r := &Request{ID: "x", Book: true, Tokens: 120, BlockSize: 10, TrackPrefill: true, Members: members,
			Hits: []index.Hit{{Hits: hits(2, 0, 0, 0)}}}
		if _, err := s.Schedule(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		loads, err := s.PotentialLoads(nil, &Request{BlockSize: 10, Members: members})
		if err != nil || loads[0].PrefillTokens != 60 {
			t.Errorf("after 4 s of 10: %+v, %v", loads, err)
		}
	})
}

// TestHitsFollowTheirWorkersToANewerList: a request that came with an older list
// of members is decided on the current one.
func TestHitsFollowTheirWorkersToANewerList(t *testing.T) {
	current := fleet(3)
	s := newScheduler(t, func(o *Options) { o.Members = func() *index.Members { return current } })
	older := &index.Members{List: []index.Member{{Worker: kv.Worker{ID: 3}}, {Worker: kv.Worker{ID: 7}}}}
	r := &Request{Tokens: 64, BlockSize: 16, TrackPrefill: true, Members: older,
		Hits: []index.Hit{{Member: 0, Hits: hits(2, 0, 0, 0)}, {Member: 1, Hits: hits(4, 0, 0, 0)}}}
	got, err := s.Schedule(t.Context(), r)
	if err != nil || got.Worker.ID != 3 || got.Members != current || got.Member != 2 || got.Hits != hits(2, 0, 0, 0) {
		t.Errorf("%+v, %v; want worker 3 with its two blocks", got, err)
	}
	r.Hits, r.Overlaps = nil, []Overlap{{0, 1}, {1, 4}}
	if got, err := s.Schedule(t.Context(), r); err != nil || got.Worker.ID != 3 || got.Effective != 1 {
		t.Errorf("%+v, %v; want worker 3 with its block", got, err)
	}
	if r.Members != older || len(r.Overlaps) != 2 {
		t.Error("the caller's request was changed")
	}
}

// TestTheRequestIsChecked: what a client may get wrong is an error that names it.
func TestTheRequestIsChecked(t *testing.T) {
	s := newScheduler(t, nil)
	for name, r := range map[string]*Request{
		"block size":  {Tokens: 1, Members: fleet(1)},
		"tokens":      {Tokens: -1, BlockSize: 1, Members: fleet(1)},
		"id":          {Book: true, Tokens: 1, BlockSize: 1, Members: fleet(1)},
		"no members":  {Tokens: 1, BlockSize: 1},
		"lost hits":   {Tokens: 1, BlockSize: 1, Hits: make([]index.Hit, 1)},
		"empty fleet": {Tokens: 1, BlockSize: 1, Members: fleet(0)},
		"taint":       {Tokens: 1, BlockSize: 1, Members: fleet(1), PreferredTaints: []TaintPreference{{"a", math.NaN()}}},
		"taints":      {Tokens: 1, BlockSize: 1, Members: fleet(1), PreferredTaints: []TaintPreference{{"a", math.Inf(1)}, {"b", math.Inf(-1)}}},
	} {
		if _, err := s.Schedule(t.Context(), r); err == nil {
			t.Errorf("%s: was accepted", name)
		}
	}
	if err := s.Add(&Request{ID: "x", Tokens: 1, BlockSize: 1}, kv.Worker{ID: 1}, -1); err == nil {
		t.Error("negative cached tokens were accepted")
	}
}

// inspector is a selector that looks at what it is given.
type inspector struct {
	look   func(*Selection)
	member int
	err    error
}

func (i *inspector) Select(in *Selection) (int, error) {
	i.look(in)
	return i.member, i.err
}

// TestASelectorSeesTheRequestAndTheLoads: a custom one chooses, may fail, and
// cannot choose who is no candidate.
func TestASelectorSeesTheRequestAndTheLoads(t *testing.T) {
	pool := FromRanges([]Range{{0, 2}})
	i := &inspector{member: 1}
	i.look = func(in *Selection) {
		if in.Request.SharedHits.TotalHits() != 2 || in.Len() != 2 || in.At(1) != 1 || len(in.Loads.PrefillTokens) != 2 {
			t.Errorf("selection %+v", in)
		}
	}
	s := newScheduler(t, func(o *Options) { o.Selector = i })
	r := &Request{Tokens: 4, BlockSize: 2, Members: fleet(2), SharedHits: &pool}
	if got, err := s.Schedule(t.Context(), r); err != nil || got.Worker.ID != 2 || got.Effective != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, member := range []int{-1, 2} {
		i.member = member
		if _, err := s.Schedule(t.Context(), r); !errors.Is(err, ErrBadSelection) {
			t.Errorf("member %d: %v", member, err)
		}
	}
	i.member, i.look, r.Allowed = 0, func(*Selection) {}, ids(2)
	if _, err := s.Schedule(t.Context(), r); !errors.Is(err, ErrBadSelection) {
		t.Errorf("a member that is not allowed: %v", err)
	}
	i.err = errors.New("no opinion")
	if _, err := s.Schedule(t.Context(), r); !errors.Is(err, i.err) {
		t.Errorf("%v", err)
	}
}

// TestDecisionsFromManyGoroutines: everything that is booked is freed in the end.
func TestDecisionsFromManyGoroutines(t *testing.T) {
	limit := int64(200)
	s := newScheduler(t, func(o *Options) { o.Queue.ThresholdTokens = &limit })
	members := fleet(5)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 200 {
				id := fmt.Sprintf("%d/%d", g, i)
				r := &Request{ID: id, Book: true, Tokens: 100, BlockSize: 10, TrackPrefill: true, Members: members,
					Sequence: blocks(kv.SequenceHash(i%7), kv.SequenceHash(i))}
				if _, err := s.Schedule(t.Context(), r); err != nil {
					t.Error(err)
					return
				}
				if i%2 == 0 {
					if err := s.MarkPrefillCompleted(id); err != nil {
						t.Error(err)
					}
				}
				s.Free(id)
			}
		})
	}
	all.Wait()
	if got := s.Stats(); got.Load.Requests != 0 || got.Load.Blocks != 0 || got.Load.Added != 1600 || got.Queue.Pending != 0 {
		t.Errorf("stats %+v", got)
	}
}

// TestADecisionAllocatesNothing: once its memory is there, with every term of
// the formula in use, a queue and thresholds.
func TestADecisionAllocatesNothing(t *testing.T) {
	limit := int64(1 << 30)
	for _, temperature := range []float64{0, 0.7} {
		s := newScheduler(t, func(o *Options) {
			o.Queue.ThresholdTokens, o.Busy.PrefillTokens = &limit, &limit
			o.Config.Temperature, o.Config.CreditDecay, o.Config.SharedMultiplier = temperature, 1, 0.5
		})
		members, pool, credit := fleet(100), FromRanges([]Range{{0, 9}}), 0.9
		r := &Request{Tokens: 160, BlockSize: 16, TrackPrefill: true, Members: members, Sequence: blocks(1, 2, 3), SharedHits: &pool,
			Override: &Override{OverlapCredit: &credit}}
		for i, m := range members.List {
			r.Hits = append(r.Hits, index.Hit{Member: int32(i), Hits: hits(uint32(i%9), 1, 1, 1)})
			if err := s.Add(&Request{ID: fmt.Sprint(i), Tokens: i, BlockSize: 16, TrackPrefill: true, Sequence: blocks(1, 2)}, m.Worker, 0); err != nil {
				t.Fatal(err)
			}
		}
		ctx := t.Context()
		if n := testing.AllocsPerRun(100, func() {
			if _, err := s.Schedule(ctx, r); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("temperature %v: %v allocations", temperature, n)
		}
	}
}
