package schedule

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/load"
	"github.com/blockyard-ai/blockyard/router/schedule/queue"
)

// naiveBusy is what laneBusy says, found by looking at every member.
func naiveBusy(s *Scheduler, i *queue.Item) bool {
	overload, prefill, some := s.overloads.current(s.account.Columns()), s.account.Columns().PrefillTokens, false
	for m := range s.members.List {
		w := s.members.List[m].Worker
		_, allowed := i.Allowed[w.ID]
		switch {
		case i.Pinned != nil && *i.Pinned != w, i.Allowed != nil && !allowed:
		case !hasTaints(&s.workers[m], i.RequiredTaints):
		case (overload == nil || !overload[m]) && !s.queue.Options().Busy(prefill[m], s.workers[m].MaxBatchedTokens):
			return false
		default:
			some = true
		}
	}
	return some
}

// TestLanesAreBusyWhenAllTheirWorkersAre: whatever constrains a request that waits,
// whichever workers are busy, overloaded, come and go or change their taints.
func TestLanesAreBusyWhenAllTheirWorkersAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		few, more := int64(10), int64(20)
		taints := make(map[kv.Worker][]string)
		members := fleet(0)
		s, err := New(Options{
			Config: DefaultConfig(), Queue: queue.Options{Class: queue.Class{ThresholdTokens: &few}}, Busy: BusyThresholds{PrefillTokens: &more},
			Members: func() *index.Members { return members },
			Worker:  func(w kv.Worker) WorkerConfig { return WorkerConfig{Taints: taints[w]} },
		})
		if err != nil {
			t.Fatal(err)
		}
		label := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b"}), 0, 2, rapid.ID)
		id := rapid.Custom(func(t *rapid.T) kv.WorkerID { return kv.WorkerID(rapid.IntRange(1, 140).Draw(t, "id")) })
		var waiting []*queue.Item
		t.Repeat(map[string]func(*rapid.T){
			"wait": func(t *rapid.T) {
				i := &queue.Item{RequiredTaints: label.Draw(t, "taints")}
				switch rapid.IntRange(0, 2).Draw(t, "kind") {
				case 0:
					i.Pinned = pin(kv.Worker{ID: id.Draw(t, "pinned"), Rank: kv.DPRank(rapid.IntRange(0, 1).Draw(t, "rank"))})
				case 1:
					i.Allowed = ids(rapid.SliceOfN(id, 1, 20).Draw(t, "allowed")...)
				}
				if err := s.queue.Push(i); err != nil {
					t.Fatal(err)
				}
				waiting = append(waiting, i)
			},
			"book": func(t *rapid.T) {
				w := kv.Worker{ID: id.Draw(t, "worker"), Rank: kv.DPRank(rapid.IntRange(0, 1).Draw(t, "rank"))}
				r := &load.Request{ID: fmt.Sprint(w), Worker: w, PrefillTokens: rapid.SampledFrom([]int{10, 11, 21}).Draw(t, "tokens")}
				if _, active := s.account.Free(r.ID); !active {
					if err := s.account.Add(r); err != nil {
						t.Fatal(err)
					}
				}
				s.loadsChanged()
			},
			"members": func(t *rapid.T) {
				list := &index.Members{}
				for _, n := range rapid.SliceOfDistinct(id, rapid.ID).Draw(t, "ids") {
					for rank := range rapid.IntRange(1, 2).Draw(t, "ranks") {
						w := kv.Worker{ID: n, Rank: kv.DPRank(rank)}
						list.List, taints[w] = append(list.List, index.Member{Worker: w}), label.Draw(t, "taints")
					}
				}
				slices.SortFunc(list.List, func(a, b index.Member) int { return a.Worker.Compare(b.Worker) })
				members = list
				s.setMembers(s.latest(nil))
				s.loadsChanged()
			},
			"": func(t *rapid.T) {
				for _, i := range waiting {
					if got, want := s.laneBusy(i), naiveBusy(s, i); got != want {
						t.Fatalf("%+v is busy: %v, want %v", i, got, want)
					}
				}
			},
		})
	})
}

// TestUsedBlocksAreForgottenInSilence: a worker that said once that it is full, and
// then nothing, is not overloaded for ever.
func TestUsedBlocksAreForgottenInSilence(t *testing.T) {
	half, now := 0.5, time.Unix(1, 0)
	s, members := newScheduler(t, func(o *Options) {
		o.Busy.DecodeBlocks = &half
		o.Worker = func(kv.Worker) WorkerConfig { return WorkerConfig{TotalBlocks: 100} }
		o.Load = load.Options{Now: func() time.Time { return now }}
	}), fleet(1)
	r := &Request{Tokens: 64, BlockSize: 16, TrackPrefill: true, Members: members}
	s.withLatestMembers(r)
	s.ReportUsedBlocks(members.List[0].Worker, 90)
	for _, c := range []struct {
		after time.Duration
		ok    bool
	}{{usedTimeout, false}, {time.Nanosecond, true}} {
		now = now.Add(c.after)
		if _, err := s.Schedule(t.Context(), r); (err == nil) != c.ok {
			t.Errorf("%v later: %v", c.after, err)
		}
	}
}

// TestAnIdleWorkerIsNotOverloaded: not even at a threshold of 0, which it cannot be
// below.
func TestAnIdleWorkerIsNotOverloaded(t *testing.T) {
	zero := 0.0
	s, members := newScheduler(t, func(o *Options) {
		o.Busy.DecodeBlocks = &zero
		o.Worker = func(kv.Worker) WorkerConfig { return WorkerConfig{TotalBlocks: 100} }
	}), fleet(1)
	r := &Request{ID: "a", Book: true, Tokens: 16, BlockSize: 16, TrackPrefill: true, Members: members, Sequence: blocks(1)}
	for range 2 {
		if _, err := s.Schedule(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Schedule(t.Context(), &Request{Tokens: 16, BlockSize: 16, Members: members}); err == nil {
			t.Fatal("a worker with a block is not overloaded")
		}
		s.Free("a")
	}
}

// BenchmarkTickOverLanes is a tick while requests wait for busy workers, each limited
// to a set of 1,000 of its own.
func BenchmarkTickOverLanes(b *testing.B) {
	const workers, lanes, each = 10_000, 1000, 1000
	few := int64(1)
	s, err := New(Options{Config: DefaultConfig(), Queue: queue.Options{Class: queue.Class{ThresholdTokens: &few}}})
	if err != nil {
		b.Fatal(err)
	}
	members := fleet(workers)
	s.withLatestMembers(&Request{Members: members})
	for i, m := range members.List {
		if err := s.Add(&Request{ID: fmt.Sprint("b", i), Tokens: 100, BlockSize: 16, TrackPrefill: true, Members: members}, m.Worker, 0); err != nil {
			b.Fatal(err)
		}
	}
	for i := range lanes {
		allowed := make(map[kv.WorkerID]struct{}, each)
		for k := range each {
			allowed[members.List[(i+k)%workers].Worker.ID] = struct{}{}
		}
		w, _, err := s.decideOrQueue(&Request{ID: fmt.Sprint(i), Tokens: 64, BlockSize: 16, TrackPrefill: true, Members: members, Allowed: allowed})
		if err != nil || w == nil {
			b.Fatalf("%v, %v", w, err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Tick()
	}
}
