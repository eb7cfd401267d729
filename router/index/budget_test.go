package index_test

import (
	"math/rand/v2"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/index"
)

// TestTheNewestPromptsAreFound: however long unrelated prompts go on coming over
// the budget, and however their lengths change, none is refused while there are
// older ones to evict, the newest is found whole, and the memory stays within
// its bound.
func TestTheNewestPromptsAreFound(t *testing.T) {
	const budget = 4 << 20
	x := newIndex(t, index.Options{MaxBytes: budget})
	w := worker(1, 0)
	join(t, x, w)
	rng := rand.New(rand.NewPCG(1, 1))
	var m index.Matches
	for phase, lengths := range [][2]int{{1, 300}, {8, 8}, {128, 128}, {60, 70}, {1, 2}, {300, 2000}} {
		for n := range 400_000 / lengths[1] {
			locals := make([]kv.LocalHash, lengths[0]+rng.IntN(lengths[1]-lengths[0]+1))
			for i := range locals {
				locals[i] = kv.LocalHash(rng.Uint64())
			}
			apply(t, x, stored(kv.WorkerOwner(w), kv.TierDevice, locals, 0, len(locals)))
			if n%16 > 0 {
				continue
			}
			if x.Match(&m, locals, index.Continuation); len(m.Hits) != 1 || int(m.Hits[0].Hits[kv.TierDevice]) != len(locals) {
				t.Fatalf("phase %d, prompt %d of %d blocks: hits %v; %+v", phase, n, len(locals), m.Hits, x.Stats())
			}
			if s := x.Stats(); s.Lost > 0 || s.Bytes > budget {
				t.Fatalf("phase %d, prompt %d: %+v", phase, n, s)
			}
		}
	}
	if s := x.Stats(); s.Evicted == 0 || s.Memberships < budget/40 {
		t.Errorf("%+v, want evictions, and a budget that is used", s)
	}
}

// TestRemovalsOverTheBudget: an engine that holds more than there is room for and
// removes its oldest prompts, part of which were evicted, is followed: the newest
// prompts are found, and the digest is that of what it was told to hold.
func TestRemovalsOverTheBudget(t *testing.T) {
	x := newIndex(t, index.Options{MaxBytes: 2 << 20})
	w := worker(1, 0)
	o := kv.WorkerOwner(w)
	join(t, x, w)
	rng := rand.New(rand.NewPCG(2, 1))
	var prompts [][]kv.LocalHash
	var m index.Matches
	total := 0
	for n := range 4000 {
		locals := make([]kv.LocalHash, 1+rng.IntN(300))
		for i := range locals {
			locals[i] = kv.LocalHash(rng.Uint64())
		}
		apply(t, x, stored(o, kv.TierDevice, locals, 0, len(locals)))
		prompts = append(prompts, locals)
		for total += len(locals); total > 150_000; prompts = prompts[1:] {
			apply(t, x, removed(o, kv.TierDevice, prompts[0], 0, len(prompts[0])))
			total -= len(prompts[0])
		}
		if x.Match(&m, locals, index.Continuation); len(m.Hits) != 1 {
			t.Fatalf("prompt %d is not found right after its store: %+v", n, x.Stats())
		}
	}
	var sum uint64
	for _, p := range prompts {
		for _, h := range kv.AppendSequence(nil, p) {
			sum += kv.Digest(h, kv.TierDevice)
		}
	}
	if got, pairs := x.Digest(o); got != sum || int(pairs) != total {
		t.Errorf("digest %x of %d pairs, want %x of %d", got, pairs, sum, total)
	}
	if s := x.Stats(); s.LostNow == 0 || s.Lost > 0 {
		t.Errorf("%+v, want evicted blocks that are still told, and none refused", s)
	}
}

// TestHasRoomEvictsNothing: what is said to have room takes nobody's place, an index that
// is over its budget has none, and has it again when an owner lets go.
func TestHasRoomEvictsNothing(t *testing.T) {
	x := newIndex(t, index.Options{MaxBytes: 1 << 20})
	w := worker(1, 0)
	join(t, x, w)
	rng := rand.New(rand.NewPCG(3, 1))
	store := func() {
		locals := make([]kv.LocalHash, 64)
		for i := range locals {
			locals[i] = kv.LocalHash(rng.Uint64())
		}
		apply(t, x, stored(kv.WorkerOwner(w), kv.TierDevice, locals, 0, len(locals)))
	}
	const prompts = 4
	room := 0
	for {
		had, before := x.HasRoom(prompts*64), x.Stats()
		for range prompts {
			store()
		}
		s := x.Stats()
		if had {
			room++
			if s.Evicted != before.Evicted || s.Lost != before.Lost {
				t.Fatalf("after %d blocks with room: %+v", before.Memberships, s)
			}
		}
		if s.Evicted > 1000 {
			break
		}
	}
	if s := x.Stats(); room*prompts*64 < s.Memberships/2 || x.HasRoom(prompts*64) {
		t.Errorf("room for %d blocks of %d, and when it is full: %v", room*prompts*64, s.Memberships, x.HasRoom(prompts*64))
	}
	x.RemoveOwner(kv.WorkerOwner(w))
	for range 100 {
		x.Sweep(1 << 12)
	}
	if !x.HasRoom(prompts * 64) {
		t.Errorf("no room in an empty index: %+v", x.Stats())
	}
}
