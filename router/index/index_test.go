package index

import (
	"errors"
	"sync"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

func newIndex(t testing.TB, o Options) *Index {
	t.Helper()
	x, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func apply(t testing.TB, x *Index, e kvevent.RouterEvent) {
	t.Helper()
	if err := x.Apply(&e); err != nil {
		t.Fatal(err)
	}
}

func worker(n int) kv.Worker { return kv.Worker{ID: kv.WorkerID(n)} }

// prompt is a sequence of n blocks; from diverge on it belongs to branch.
func prompt(n, diverge int, branch uint64) []kv.LocalHash {
	locals := make([]kv.LocalHash, n)
	for i := range locals {
		locals[i] = kv.LocalHash(i + 1)
		if i >= diverge {
			locals[i] += kv.LocalHash(branch << 32)
		}
	}
	return locals
}

func join(t testing.TB, x *Index, workers ...int) {
	t.Helper()
	for _, n := range workers {
		if err := x.SetMember(worker(n), 0, true); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLongPromptsAreExactAtEveryDivergence(t *testing.T) {
	x := newIndex(t, Options{})
	join(t, x, 1)
	apply(t, x, storedEvent(kv.WorkerOwner(worker(1)), kv.TierDevice, nil, prompt(1000, 1000, 0)))
	var m Matches
	for _, d := range []int{0, 1, 31, 32, 33, 63, 64, 65, 95, 96, 97, 499, 999, 1000} {
		x.Match(&m, prompt(1000, d, 7))
		if got := int(m.Workers[0].Hits[kv.TierDevice]); got != d {
			t.Errorf("divergence at %d: device hits %d", d, got)
		}
	}
}

func TestStaggeredPrefixesAreExact(t *testing.T) {
	x := newIndex(t, Options{})
	lengths := []int{10, 20, 35, 64, 100}
	for i, n := range lengths {
		join(t, x, i+1)
		apply(t, x, storedEvent(kv.WorkerOwner(worker(i+1)), kv.TierDevice, nil, prompt(n, n, 0)))
	}
	var m Matches
	x.Match(&m, prompt(200, 200, 0))
	for i, n := range lengths {
		if got := int(m.Workers[i].Hits[kv.TierDevice]); got != n {
			t.Errorf("worker %s: device hits %d, want %d", m.Workers[i].Worker, got, n)
		}
	}
}

func TestRequestsWithOtherLoRAOrSaltMatchNothing(t *testing.T) {
	x := newIndex(t, Options{})
	join(t, x, 1)
	var h kv.Hasher
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8}
	plain := h.AppendLocals(nil, tokens, 4, kv.LocalSeed("", ""))
	apply(t, x, storedEvent(kv.WorkerOwner(worker(1)), kv.TierDevice, nil, plain))
	var m Matches
	for _, seed := range []uint64{kv.LocalSeed("my-adapter", ""), kv.LocalSeed("", "tenant-id-1")} {
		x.Match(&m, h.AppendLocals(nil, tokens, 4, seed))
		if got := m.Workers[0].Hits.Total(); got != 0 {
			t.Errorf("seed %d: %d hits, want none", seed, got)
		}
	}
}

func TestFullIndexRefusesAndKeepsWhatItHas(t *testing.T) {
	x := newIndex(t, Options{MaxMemberships: 10, MaxOwners: 2})
	o := kv.WorkerOwner(worker(1))
	join(t, x, 1)
	apply(t, x, storedEvent(o, kv.TierDevice, nil, prompt(8, 8, 0)))
	big := storedEvent(o, kv.TierDevice, nil, prompt(12, 12, 0))
	if err := x.Apply(&big); !errors.Is(err, ErrFull) {
		t.Errorf("store of 12 blocks with room for 10: %v, want ErrFull", err)
	}
	if err := x.Replace(o, []kvevent.RouterEvent{big}); !errors.Is(err, ErrFull) {
		t.Errorf("dump of 12 blocks with room for 10: %v, want ErrFull", err)
	}
	var m Matches
	if x.Match(&m, prompt(12, 12, 0)); m.Workers[0].Hits[kv.TierDevice] != 10 {
		t.Errorf("device hits %d, want the 10 that fitted", m.Workers[0].Hits[kv.TierDevice])
	}
	if s := x.Stats(); s.Memberships != 10 || s.Refused == 0 {
		t.Errorf("stats %+v, want 10 memberships and a count of refusals", s)
	}
	join(t, x, 2)
	if err := x.SetMember(worker(3), 0, true); !errors.Is(err, ErrFull) {
		t.Errorf("third owner of two: %v, want ErrFull", err)
	}
	if err := x.SetMember(worker(2), 9, true); !errors.Is(err, ErrFull) {
		t.Errorf("a pool as third owner of two: %v, want ErrFull", err)
	}
	x.RemoveOwner(o)
	if err := x.Replace(o, []kvevent.RouterEvent{storedEvent(o, kv.TierHost, nil, prompt(10, 10, 0))}); err != nil {
		t.Errorf("dump of 10 blocks into an empty index: %v", err)
	}
}

func TestInvalidEventsAreRefusedWhole(t *testing.T) {
	x := newIndex(t, Options{})
	o := kv.WorkerOwner(worker(1))
	good := storedEvent(o, kv.TierDevice, nil, prompt(2, 2, 0))
	for name, spoil := range map[string]func(*kvevent.RouterEvent){
		"tier":  func(e *kvevent.RouterEvent) { e.Tier = kv.NumTiers },
		"kind":  func(e *kvevent.RouterEvent) { e.Kind = 0 },
		"owner": func(e *kvevent.RouterEvent) { e.Owner.Kind = 9 },
	} {
		bad := good
		spoil(&bad)
		if err := x.Apply(&bad); err == nil {
			t.Errorf("event with a bad %s was applied", name)
		}
		if err := x.Replace(o, []kvevent.RouterEvent{good, bad}); err == nil {
			t.Errorf("dump with a bad %s was applied", name)
		}
	}
	if err := x.Replace(o, []kvevent.RouterEvent{removal(good)}); err == nil {
		t.Error("dump with a removal was applied")
	}
	if s := x.Stats(); s.Memberships != 0 || s.Owners != 0 {
		t.Errorf("stats %+v, want an empty index", s)
	}
}

func TestOptionsOutOfRangeAreNamed(t *testing.T) {
	for _, o := range []Options{{MaxMemberships: -1}, {MaxOwners: -1}, {MaxOwners: maxOwners}} {
		if _, err := New(o); err == nil {
			t.Errorf("options %+v were accepted", o)
		}
	}
}

// TestReadersSeeOldOrNewNeverAMixture: while a worker's blocks are replaced
// back and forth between two dumps, every reader sees exactly one of them.
func TestReadersSeeOldOrNewNeverAMixture(t *testing.T) {
	x := newIndex(t, Options{})
	o := kv.WorkerOwner(worker(1))
	join(t, x, 1)
	const short, long = 600, 2000
	dumps := [2][]kvevent.RouterEvent{
		{storedEvent(o, kv.TierDevice, nil, prompt(short, short, 0))},
		{storedEvent(o, kv.TierDevice, nil, prompt(long, long, 0))},
	}
	if err := x.Replace(o, dumps[0]); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var readers, other sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			var m Matches
			for locals := prompt(long, long, 0); ; {
				select {
				case <-stop:
					return
				default:
				}
				x.Match(&m, locals)
				if got := m.Workers[0].Hits[kv.TierDevice]; got != short && got != long {
					t.Errorf("a reader saw %d blocks, want %d or %d", got, short, long)
					return
				}
				x.Digest(o)
				x.Stats()
			}
		})
	}
	other.Go(func() {
		pool := kv.PoolOwner(3)
		for i := range 200 {
			e := storedEvent(pool, kv.TierHost, nil, prompt(700, i, uint64(i)))
			if err := x.Apply(&e); err != nil {
				t.Error(err)
			}
			if i%10 == 9 {
				x.RemoveOwner(pool)
			}
		}
	})
	for i := range 40 {
		if err := x.Replace(o, dumps[i%2]); err != nil {
			t.Error(err)
		}
	}
	other.Wait()
	close(stop)
	readers.Wait()
}

func TestMatchAllocatesNothingWhenReused(t *testing.T) {
	x := newIndex(t, Options{})
	locals := prompt(750, 750, 0)
	for n := range 8 {
		join(t, x, n+1)
		apply(t, x, storedEvent(kv.WorkerOwner(worker(n+1)), kv.TierDevice, nil, locals[:100*(n+1)-50]))
	}
	var m Matches
	x.Match(&m, locals)
	if n := testing.AllocsPerRun(100, func() { x.Match(&m, locals) }); n != 0 {
		t.Errorf("%v allocations per Match, want none", n)
	}
}

func BenchmarkMatch750Blocks8Workers(b *testing.B) {
	x := newIndex(b, Options{})
	locals := prompt(750, 750, 0)
	for n := range 8 {
		join(b, x, n+1)
		apply(b, x, storedEvent(kv.WorkerOwner(worker(n+1)), kv.TierDevice, nil, locals))
	}
	var m Matches
	b.ReportAllocs()
	for b.Loop() {
		x.Match(&m, locals)
	}
}

func BenchmarkApplyStoreRemove(b *testing.B) {
	x := newIndex(b, Options{})
	e := storedEvent(kv.WorkerOwner(worker(1)), kv.TierDevice, nil, prompt(128, 128, 0))
	r := removal(e)
	b.ReportAllocs()
	for b.Loop() {
		apply(b, x, e)
		apply(b, x, r)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*256), "ns/block")
}
