package modes

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule"
)

// fleet is a selection among workers 1 to len(requests) with these loads.
func fleet(requests []int32, prefill []int64) *schedule.Selection {
	c := schedule.DefaultConfig()
	m := &index.Members{}
	for i := range requests {
		m.List = append(m.List, index.Member{Worker: kv.Worker{ID: kv.WorkerID(i + 1)}})
	}
	return &schedule.Selection{
		Request: &schedule.Request{Tokens: 1, BlockSize: 1}, Config: &c, Members: m,
		Loads: &load.Columns{Requests: requests, PrefillTokens: prefill, ActiveBlocks: make([]int32, len(requests))},
	}
}

// shares returns the share of each member in many choices.
func shares(t *testing.T, s schedule.Selector, in *schedule.Selection) []float64 {
	t.Helper()
	const n = 20_000
	counts := make([]float64, len(in.Members.List))
	for range n {
		m, err := s.Select(in)
		if err != nil {
			t.Fatal(err)
		}
		counts[m] += 1. / n
	}
	return counts
}

func expect(t *testing.T, what string, got, want []float64) {
	t.Helper()
	for i := range want {
		if math.Abs(got[i]-want[i]) > 0.015 || want[i] == 0 && got[i] != 0 {
			t.Errorf("%s: shares %.3f, want %.3f", what, got, want)
			return
		}
	}
}

func TestRandomIsUniformAmongCandidates(t *testing.T) {
	in := fleet([]int32{9, 0, 0, 5}, []int64{9, 0, 0, 5})
	expect(t, "all", shares(t, NewRandom(1), in), []float64{.25, .25, .25, .25})
	in.Candidates = []int32{0, 2}
	expect(t, "two of four", shares(t, NewRandom(1), in), []float64{.5, 0, .5, 0})
}

func TestRoundRobinKeepsItsTurnsWhenWorkersComeAndGo(t *testing.T) {
	var s RoundRobin
	pick := func(ids []int, pinned bool) int {
		in := fleet(make([]int32, len(ids)), make([]int64, len(ids)))
		for i, id := range ids {
			in.Members.List[i].Worker.ID = kv.WorkerID(id)
		}
		if pinned {
			in.Candidates, in.Request.Pinned = []int32{int32(len(ids) - 1)}, &in.Members.List[len(ids)-1].Worker
		}
		m, err := s.Select(in)
		if err != nil {
			t.Fatal(err)
		}
		return ids[m]
	}
	for i, step := range []struct {
		ids    []int
		pinned bool
		want   int
	}{
		{[]int{1, 2, 3}, false, 1}, {[]int{1, 2, 3}, false, 2}, {[]int{1, 3}, false, 3}, {[]int{1, 2, 3}, false, 1},
		{[]int{1, 2, 3}, true, 3}, {[]int{1, 2, 3}, false, 2}, {[]int{1}, false, 1}, {[]int{1}, false, 1},
		{[]int{0, 1, 5}, false, 5}, {[]int{0, 1, 5}, false, 0},
	} {
		if got := pick(step.ids, step.pinned); got != step.want {
			t.Errorf("turn %d among %v: worker %d, want %d", i, step.ids, got, step.want)
		}
	}
}

// Of four workers with different loads the k-th least loaded wins the draws in which no
// better one is: 3/6, 2/6, 1/6 and 0/6.
func TestPowerOfTwoTakesTheLighterOfTwo(t *testing.T) {
	want := []float64{1. / 6, 3. / 6, 0, 2. / 6}
	expect(t, "by requests", shares(t, NewPowerOfTwo(2), fleet([]int32{3, 1, 4, 2}, []int64{0, 9, 0, 9})), want)
	expect(t, "by tokens", shares(t, NewPowerOfTwo(2), fleet([]int32{1, 1, 1, 1}, []int64{30, 10, 40, 20})), want)
	expect(t, "equal", shares(t, NewPowerOfTwo(2), fleet([]int32{1, 1, 1}, []int64{5, 5, 5})), []float64{1. / 3, 1. / 3, 1. / 3})
	in := fleet([]int32{3, 1, 4, 2}, make([]int64, 4))
	in.Candidates = []int32{2}
	expect(t, "one candidate", shares(t, NewPowerOfTwo(2), in), []float64{0, 0, 1, 0})
	in.Candidates = []int32{0, 2}
	expect(t, "two candidates", shares(t, NewPowerOfTwo(2), in), []float64{1, 0, 0, 0})
}

func TestLeastLoaded(t *testing.T) {
	expect(t, "by requests", shares(t, NewLeastLoaded(3), fleet([]int32{3, 1, 4, 2}, []int64{0, 9, 0, 9})), []float64{0, 1, 0, 0})
	expect(t, "by tokens", shares(t, NewLeastLoaded(3), fleet([]int32{2, 1, 1, 1}, []int64{0, 9, 8, 9})), []float64{0, 0, 1, 0})
	in := fleet([]int32{1, 2, 1, 1}, []int64{5, 0, 5, 5})
	expect(t, "equal", shares(t, NewLeastLoaded(3), in), []float64{1. / 3, 0, 1. / 3, 1. / 3})
	in.Config.Tie = schedule.TieFirst
	expect(t, "first of equal", shares(t, NewLeastLoaded(3), in), []float64{1, 0, 0, 0})
	in.Candidates = []int32{1, 2}
	expect(t, "candidates", shares(t, NewLeastLoaded(3), in), []float64{0, 0, 1, 0})
}

// A seed repeats the choices, and a pinned request goes to its worker in every mode.
func TestSeedsAndPins(t *testing.T) {
	in := fleet([]int32{1, 1, 1, 1, 1}, make([]int64, 5))
	for name, made := range map[string]func(uint64) schedule.Selector{
		"random":       func(seed uint64) schedule.Selector { return NewRandom(seed) },
		"power of two": func(seed uint64) schedule.Selector { return NewPowerOfTwo(seed) },
		"least loaded": func(seed uint64) schedule.Selector { return NewLeastLoaded(seed) },
	} {
		a, b, differs := made(7), made(7), false
		for range 100 {
			x, errA := a.Select(in)
			y, errB := b.Select(in)
			if x != y || errA != nil || errB != nil {
				t.Fatalf("%s: choices %d and %d of one seed: %v, %v", name, x, y, errA, errB)
			}
			differs = differs || x != 0
		}
		if !differs {
			t.Errorf("%s: always the first worker", name)
		}
		pinned := fleet([]int32{9, 0, 0}, make([]int64, 3))
		pinned.Candidates, pinned.Request.Pinned = []int32{0}, &kv.Worker{ID: 1}
		if m, err := made(7).Select(pinned); m != 0 || err != nil {
			t.Errorf("%s: a pinned request goes to member %d: %v", name, m, err)
		}
	}
}

func TestDirect(t *testing.T) {
	in := fleet([]int32{0, 9}, make([]int64, 2))
	if _, err := (Direct{}).Select(in); !errors.Is(err, ErrNotPinned) {
		t.Errorf("without a worker: %v", err)
	}
	in.Candidates, in.Request.Pinned = []int32{1}, &kv.Worker{ID: 2}
	if m, err := (Direct{}).Select(in); m != 1 || err != nil {
		t.Errorf("member %d, %v; want the pinned one", m, err)
	}
}

// Prompts that are computed on some workers and answered on others take turns among each.
func TestRoundRobinTakesTurnsInEachRole(t *testing.T) {
	var s RoundRobin
	in := fleet(make([]int32, 5), make([]int64, 5))
	counts := make([]int, 5)
	for range 60 {
		for _, role := range []struct {
			candidates []int32
			request    schedule.Request
		}{{[]int32{0, 1}, schedule.Request{ExpectedOutput: 1}}, {[]int32{2, 3, 4}, schedule.Request{HandedOver: true}}, {[]int32{2, 3, 4}, schedule.Request{}}} {
			in.Candidates, in.Request = role.candidates, &role.request
			m, err := s.Select(in)
			if err != nil {
				t.Fatal(err)
			}
			counts[m]++
		}
	}
	if !slices.Equal(counts, []int{30, 30, 40, 40, 40}) {
		t.Errorf("choices %v, want 30 of each prefill worker and 40 of each decode worker", counts)
	}
}
