package index_test

import (
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// TestWrongHashesDoNotKeepRightOnesOut: one publisher names blocks by hashes that
// are not those of their content. Wherever in a prompt that begins, the blocks of
// those who name them rightly take their place when they come; what the wrong one
// was told to hold stays in its digest and its loss is shown.
func TestWrongHashesDoNotKeepRightOnesOut(t *testing.T) {
	for _, wrongFrom := range []int{0, 1, 50, 127, 128, 200} {
		for _, chunk := range []int{300, 70} {
			x := newIndex(t, index.Options{})
			join(t, x, worker(1, 0), worker(2, 0))
			liar, honest := kv.WorkerOwner(worker(1, 0)), kv.WorkerOwner(worker(2, 0))
			prompt := series(1, 300)
			var told uint64
			for from := 0; from < len(prompt); from += chunk {
				e := stored(liar, kv.TierDevice, prompt, from, min(from+chunk, len(prompt)))
				if from > wrongFrom {
					e.Parent++
				}
				for i := range e.Blocks {
					if from+i >= wrongFrom {
						e.Blocks[i].Hash++
					}
					told += kv.Digest(e.Blocks[i].Hash, kv.TierDevice)
				}
				apply(t, x, e)
			}
			apply(t, x, stored(honest, kv.TierDevice, prompt, 0, len(prompt)))
			want := map[kv.Worker]index.Hits{worker(2, 0): device(300)}
			if wrongFrom > 0 {
				want[worker(1, 0)] = device(uint32(wrongFrom))
			}
			same(t, "match", match(t, x, prompt, index.Continuation), want)
			sum, pairs := x.Digest(liar)
			if lost := x.Lost(liar); sum != told || pairs != 300 || lost != uint64(300-wrongFrom) {
				t.Errorf("wrong from %d: digest %x of %d pairs, %d lost, want %x of 300, %d lost", wrongFrom, sum, pairs, lost, told, 300-wrongFrom)
			}
			if x.Lost(honest) != 0 || x.Stats().Conflicts == 0 {
				t.Errorf("wrong from %d: %+v", wrongFrom, x.Stats())
			}
		}
	}
}

// TestWrongHashesDoNotPushRightOnesOut: the newcomer is refused and counted.
func TestWrongHashesDoNotPushRightOnesOut(t *testing.T) {
	x := newIndex(t, index.Options{})
	join(t, x, worker(1, 0), worker(2, 0))
	prompt := series(1, 200)
	apply(t, x, stored(kv.WorkerOwner(worker(1, 0)), kv.TierDevice, prompt, 0, 200))
	e := stored(kv.WorkerOwner(worker(2, 0)), kv.TierDevice, prompt, 0, 200)
	for i := range e.Blocks[150:] {
		e.Blocks[150+i].Hash++
	}
	apply(t, x, e)
	same(t, "match", match(t, x, prompt, index.Continuation), map[kv.Worker]index.Hits{worker(1, 0): device(200), worker(2, 0): device(150)})
	if s := x.Stats(); s.Conflicts != 1 || s.Lost != 50 || x.Lost(e.Owner) != 50 {
		t.Errorf("%+v, want 1 conflict and 50 blocks lost", s)
	}
}

// TestOneHashForManyBlocksStaysCheap: a publisher that gives all its blocks one
// hash does not make the work of others, or its own, grow with their number.
func TestOneHashForManyBlocksStaysCheap(t *testing.T) {
	x := newIndex(t, index.Options{})
	o := kv.WorkerOwner(worker(1, 0))
	e := kvevent.RouterEvent{Owner: o, Kind: kvevent.Stored, Blocks: make([]kvevent.StoredBlock, 1)}
	for n := range 100_000 {
		e.Blocks[0] = kvevent.StoredBlock{Hash: 7, Local: kv.LocalHash(n)}
		apply(t, x, e)
	}
	if s := x.Stats(); s.Memberships != 100_000 {
		t.Errorf("%+v, want 100,000 memberships", s)
	}
	gone := kvevent.RouterEvent{Owner: o, Kind: kvevent.Removed, Removed: []kv.SequenceHash{7}}
	for range 1000 {
		apply(t, x, gone)
	}
	if s := x.Stats(); s.ScannedBlocks > 50_000_000 {
		t.Errorf("%+v, want fewer scanned blocks", s)
	}
}
