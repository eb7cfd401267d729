package schedule

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
)

func ids(list ...kv.WorkerID) map[kv.WorkerID]struct{} {
	set := make(map[kv.WorkerID]struct{})
	for _, id := range list {
		set[id] = struct{}{}
	}
	return set
}

// TestEligibleWorkersAndTheReasonsForNone: allowed ids, then existence, then
// required taints, then overload, each with its error.
func TestEligibleWorkersAndTheReasonsForNone(t *testing.T) {
	pin := func(id kv.WorkerID, rank kv.DPRank) *kv.Worker { return &kv.Worker{ID: id, Rank: rank} }
	members := &index.Members{List: []index.Member{
		{Worker: kv.Worker{ID: 1}}, {Worker: kv.Worker{ID: 2}}, {Worker: kv.Worker{ID: 2, Rank: 1}}, {Worker: kv.Worker{ID: 5}},
	}}
	workers := []WorkerConfig{{Taints: []string{"a", "b"}}, {Taints: []string{"a"}}, {Taints: []string{"b", "a"}}, {}}
	second := []bool{false, true, true, false}
	every := []bool{true, true, true, true}
	for _, c := range []struct {
		name     string
		members  *index.Members
		f        filter
		overload []bool
		want     []int32 // nil: all
		err      error
	}{
		{"nobody", &index.Members{}, filter{}, nil, nil, ErrNoEndpoints},
		{"everybody", members, filter{}, nil, nil, nil},
		{"allowed, all ranks", members, filter{allowed: ids(2, 5, 9)}, nil, []int32{1, 2, 3}, nil},
		{"allowed, none there", members, filter{allowed: ids(3)}, nil, nil, ErrNoEndpoints},
		{"none allowed", members, filter{allowed: ids()}, nil, nil, ErrNoEndpoints},
		{"all of the taints", members, filter{taints: []string{"a", "b"}}, nil, []int32{0, 2}, nil},
		{"taints that nobody has together", members, filter{taints: []string{"a", "c"}}, nil, nil, ErrAllFiltered},
		{"taints within the allowed", members, filter{allowed: ids(5), taints: []string{"a"}}, nil, nil, ErrAllFiltered},
		{"some overloaded", members, filter{}, second, []int32{0, 3}, nil},
		{"all overloaded", members, filter{}, every, nil, ErrAllOverloaded},
		{"all allowed overloaded", members, filter{allowed: ids(2)}, second, nil, ErrAllOverloaded},
		{"pinned", members, filter{pinned: pin(2, 1)}, nil, []int32{2}, nil},
		{"pinned to a rank that is not there", members, filter{pinned: pin(2, 2)}, nil, nil, ErrNoEndpoints},
		{"pinned, and others allowed", members, filter{pinned: pin(2, 1), allowed: ids(1)}, nil, nil, ErrPinnedNotAllowed},
		{"pinned without the taint", members, filter{pinned: pin(5, 0), taints: []string{"a"}}, nil, nil, ErrPinnedNotAllowed},
		{"pinned and overloaded", members, filter{pinned: pin(2, 0)}, second, nil, ErrPinnedOverloaded},
		{"pinned while others are overloaded", members, filter{pinned: pin(1, 0)}, second, []int32{0}, nil},
	} {
		x := cluster{c.members, workers, c.overload}
		got, err := x.eligible(nil, c.f)
		if !errors.Is(err, c.err) || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, got, err, c.want, c.err)
		}
	}
}

// TestAPinnedRequestIsNotRerouted: it goes to a worse worker, whatever its taints
// and the temperature, and fails when that one is overloaded.
func TestAPinnedRequestIsNotRerouted(t *testing.T) {
	tokens := int64(10)
	s, err := New(Options{Config: with(func(c *Config) { c.Temperature = 1 }), Busy: BusyThresholds{PrefillTokens: &tokens},
		Worker: func(w kv.Worker) WorkerConfig { return WorkerConfig{Taints: []string{"t"}} }})
	if err != nil {
		t.Fatal(err)
	}
	members := fleet(3)
	r := &Request{ID: "x", Book: true, Tokens: 11, BlockSize: 16, TrackPrefill: true, Members: members, Pinned: &members.List[1].Worker,
		Hits:            []index.Hit{{Member: 0, Hits: hits(9, 0, 0, 0)}},
		PreferredTaints: []TaintPreference{{"t", -5}},
		Explain: func(c *Candidate) {
			if c.TaintFactor != 1 {
				t.Errorf("taint factor %v for a pinned request", c.TaintFactor)
			}
		},
	}
	if got, err := s.Schedule(t.Context(), r); err != nil || got.Member != 1 || !got.Booked || got.Cost != 11.0/16 {
		t.Fatalf("%+v, %v", got, err)
	}
	r.ID = "y"
	if _, err := s.Schedule(t.Context(), r); !errors.Is(err, ErrPinnedOverloaded) {
		t.Errorf("pinned to an overloaded worker: %v", err)
	}
	r.Pinned = nil
	for range 20 {
		if got, err := s.Schedule(t.Context(), &Request{Tokens: 11, BlockSize: 16, TrackPrefill: true, Members: members}); err != nil || got.Member == 1 {
			t.Fatalf("with member 1 overloaded: member %d, %v", got.Member, err)
		}
	}
	if got := s.Stats(); got.Overloaded != 1 || got.NoEndpoints != 0 || got.Filtered != 0 {
		t.Errorf("stats %+v", got)
	}
}

// TestBusyThresholds: each rule, the latch of the decode threshold, and that a
// worker is overloaded only when all its ranks are.
func TestBusyThresholds(t *testing.T) {
	half, zero, tokens := 0.5, 0.0, int64(100)
	fraction := 0.015
	type step struct {
		decode  [2]int32
		used    [2]uint64
		prefill [2]int64
		want    bool
	}
	for _, c := range []struct {
		name  string
		b     BusyThresholds
		batch uint64
		steps []step
	}{
		{"no threshold", BusyThresholds{}, 0, []step{{[2]int32{99, 99}, [2]uint64{99, 99}, [2]int64{1 << 40, 1 << 40}, false}}},
		{"tokens", BusyThresholds{PrefillTokens: &tokens}, 0, []step{
			{prefill: [2]int64{100, 100}}, {prefill: [2]int64{101, 100}}, {prefill: [2]int64{101, 101}, want: true}, {},
		}},
		{"a fraction of a step, cut to whole tokens", BusyThresholds{PrefillFraction: &fraction}, 1050, []step{
			{prefill: [2]int64{15, 15}}, {prefill: [2]int64{16, 16}, want: true},
		}},
		{"a step of unknown size is very large", BusyThresholds{PrefillFraction: &fraction}, 0, []step{
			{prefill: [2]int64{150_000, 150_000}}, {prefill: [2]int64{150_001, 150_001}, want: true},
		}},
		{"fraction zero", BusyThresholds{PrefillFraction: &zero}, 0, []step{{}, {prefill: [2]int64{1, 1}, want: true}}},
		{"blocks, own account or reported, until both are below", BusyThresholds{DecodeBlocks: &half}, 0, []step{
			{decode: [2]int32{50, 50}}, {decode: [2]int32{51, 51}, want: true}, {decode: [2]int32{50, 50}, want: true},
			{decode: [2]int32{49, 49}, used: [2]uint64{50, 50}, want: true}, {decode: [2]int32{49, 49}, used: [2]uint64{49, 49}},
			{used: [2]uint64{51, 0}}, {used: [2]uint64{51, 51}, want: true}, {used: [2]uint64{0, 51}}, {},
		}},
		{"a rank passes the threshold before the others do", BusyThresholds{DecodeBlocks: &half}, 0, []step{
			{decode: [2]int32{0, 51}}, {decode: [2]int32{51, 50}, want: true},
		}},
	} {
		members := &index.Members{List: []index.Member{{Worker: kv.Worker{ID: 1}}, {Worker: kv.Worker{ID: 1, Rank: 1}}, {Worker: kv.Worker{ID: 2}}}}
		o := newOverloads(c.b, time.Now)
		config := WorkerConfig{MaxBatchedTokens: c.batch, TotalBlocks: 100}
		o.align(members, []WorkerConfig{config, config, config})
		for i, s := range c.steps {
			for m := range s.used {
				if !o.report(members.List[m].Worker, s.used[m]) {
					t.Fatalf("%s: member %d is not known", c.name, m)
				}
			}
			got := o.current(&load.Columns{ActiveBlocks: append(s.decode[:], 0), PrefillTokens: append(s.prefill[:], 0)})
			if over := got != nil && got[0]; over != s.want {
				t.Errorf("%s, step %d: overloaded %v, want %v", c.name, i, over, s.want)
			}
			if got != nil && (got[0] != got[1] || got[2]) {
				t.Errorf("%s, step %d: %v: ranks differ, or the idle worker is overloaded", c.name, i, got)
			}
		}
	}
}

// TestBusyStateFollowsItsWorker: what a worker has reported and its latch stay
// with it when others come and go.
func TestBusyStateFollowsItsWorker(t *testing.T) {
	half := 0.5
	o := newOverloads(BusyThresholds{DecodeBlocks: &half}, time.Now)
	many := func(n int) []WorkerConfig {
		return slices.Repeat([]WorkerConfig{{TotalBlocks: 100}}, n)
	}
	columns := func(n int) *load.Columns {
		return &load.Columns{ActiveBlocks: make([]int32, n), PrefillTokens: make([]int64, n)}
	}
	o.align(fleet(2), many(2))
	o.report(kv.Worker{ID: 2}, 60)
	if got := o.current(columns(2)); !slices.Equal(got, []bool{false, true}) {
		t.Fatalf("overloaded: %v", got)
	}
	o.align(&index.Members{List: []index.Member{{Worker: kv.Worker{ID: 2}}, {Worker: kv.Worker{ID: 3}}}}, many(2))
	o.report(kv.Worker{ID: 2}, 50)
	if got := o.current(columns(2)); !slices.Equal(got, []bool{true, false}) {
		t.Errorf("after the change: %v, want the latch of worker 2 to hold", got)
	}
	if o.report(kv.Worker{ID: 1}, 60) {
		t.Error("a report of a worker that is gone was taken")
	}
	o.align(fleet(1), many(1))
	if got := o.current(columns(1)); got != nil {
		t.Errorf("a worker that came back is overloaded: %v", got)
	}
}

func TestBusyThresholdsOutOfRangeAreNamed(t *testing.T) {
	two, minus, tokens := 2.0, -1.0, int64(-1)
	s, err := New(Options{Config: DefaultConfig()})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []BusyThresholds{{DecodeBlocks: &two}, {PrefillFraction: &minus}, {PrefillTokens: &tokens}} {
		if _, err := New(Options{Config: DefaultConfig(), Busy: b}); err == nil {
			t.Errorf("%+v was accepted", b)
		}
		if s.SetBusy(b) == nil || s.Busy() != (BusyThresholds{}) {
			t.Errorf("%+v was set", b)
		}
	}
}

// TestRequestsWithoutASetOfWorkersInALargeCluster: a request that allows all workers finds
// those that are left, however many there are, when taints or an overload rule some out.
func TestRequestsWithoutASetOfWorkersInALargeCluster(t *testing.T) {
	for _, n := range []int{15, 16, 17, 1000} {
		members, workers, overload := fleet(n), make([]WorkerConfig, n), make([]bool, n)
		overload[0], workers[n-1].Taints = true, []string{"a"}
		x := cluster{members, workers, overload}
		if got, err := x.eligible(nil, filter{}); err != nil || len(got) != n-1 || got[0] != 1 {
			t.Errorf("%d workers, one overloaded: members %v, %v", n, got, err)
		}
		x.overload = nil
		if got, err := x.eligible(nil, filter{taints: []string{"a"}}); err != nil || !slices.Equal(got, []int32{int32(n - 1)}) {
			t.Errorf("%d workers, one with the taint: members %v, %v", n, got, err)
		}
	}
}
