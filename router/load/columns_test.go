package load

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestMembershipIsByPrefix: a block counts as active only after the same blocks.
func TestMembershipIsByPrefix(t *testing.T) {
	f := newFixture(t, Options{})
	f.add("a", worker1, 0, 1, 2, 4, 5)
	prompt := hashes(1, 2, 3, 5)
	shared := f.Shared(nil, prompt)
	if want := []Shared{{Member: 0, Blocks: 2}}; !cmp.Equal(shared, want) {
		t.Fatalf("shared %v, want %v", shared, want)
	}
	f.expect("before", 4, 0)
	f.add("b", worker1, 0, prompt...)
	f.expect("both", 6, 0)
}

// TestProjection: what each worker has to do and would have to.
func TestProjection(t *testing.T) {
	f := newFixture(t, Options{})
	f.add("a", worker1, 12, 1, 2, 3)
	f.output("a", .5)
	f.prefillDone("a")
	f.add("b", worker2, 12, 1, 2, 4)
	want := Columns{PrefillTokens: []int64{0, 12}, ActiveBlocks: []int32{2, 3}, Requests: []int32{1, 1}}
	if d := cmp.Diff(want, *f.Columns()); d != "" {
		t.Error(d)
	}
	// One block of the prompt is new to worker 1, two are to worker 2.
	shared := f.Shared(nil, hashes(1, 2, 3, 5))
	if want := []Shared{{Member: 1, Blocks: 2}, {Member: 0, Blocks: 3}}; !cmp.Equal(shared, want) {
		t.Errorf("shared %v, want %v", shared, want)
	}
}

// TestColumnsFollowTheMembers: loads are kept while a worker is no member and
// show at its place when it becomes one.
func TestColumnsFollowTheMembers(t *testing.T) {
	f := newFixture(t, Options{})
	f.Align(members())
	f.add("a", worker1, 7, 1)
	f.add("b", worker2, 9, 1, 2)
	if got := f.Shared(nil, hashes(1, 2)); len(got) != 0 {
		t.Errorf("no members share %v", got)
	}
	other := kv.Worker{ID: 1, Rank: 1}
	f.Align(members(worker1, other, worker2))
	want := Columns{PrefillTokens: []int64{7, 0, 9}, ActiveBlocks: []int32{1, 0, 2}, Requests: []int32{1, 0, 1}}
	if d := cmp.Diff(want, *f.Columns()); d != "" {
		t.Error(d)
	}
	f.Align(members(other, worker2))
	f.Free("a")
	f.add("c", other, 1)
	want = Columns{PrefillTokens: []int64{1, 9}, ActiveBlocks: []int32{0, 2}, Requests: []int32{1, 1}}
	if d := cmp.Diff(want, *f.Columns()); d != "" {
		t.Error(d)
	}
	if got := f.Shared(nil, hashes(1, 2)); !cmp.Equal(got, []Shared{{Member: 1, Blocks: 2}}) {
		t.Errorf("shared %v", got)
	}
}

// TestReadingAllocatesNothing: decisions read the loads, and are many.
func TestReadingAllocatesNothing(t *testing.T) {
	f := newFixture(t, Options{})
	f.addModelled("a", worker1, 10, time.Second, 1, 2, 3)
	f.add("b", worker2, 10, 1, 2, 4)
	sequence, dst := hashes(1, 2, 3, 4), make([]Shared, 0, 2)
	if n := testing.AllocsPerRun(100, func() {
		f.Align(f.members)
		f.Columns()
		dst = f.Shared(dst[:0], sequence)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
