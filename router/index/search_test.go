package index

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// chainFrom are n blocks of a sequence that starts at its root, and their local
// hashes. Two firsts have no block in common.
func chainFrom(first uint64, n int) ([]kvevent.StoredBlock, []kv.LocalHash) {
	locals := make([]kv.LocalHash, n)
	for i := range locals {
		locals[i] = kv.LocalHash(kv.Digest(kv.SequenceHash(first+uint64(i)), kv.TierDisk))
	}
	blocks := make([]kvevent.StoredBlock, n)
	for i, h := range kv.AppendSequence(nil, locals) {
		blocks[i] = kvevent.StoredBlock{Hash: h, Local: locals[i]}
	}
	return blocks, locals
}

// One event may name thousands of blocks that are not here, as after a restart of
// the router: the index is searched for the first ones of them and not for each.
func TestOneEventOfUnknownBlocksMakesFewSearches(t *testing.T) {
	x, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := kv.WorkerOwner(kv.Worker{ID: 1})
	for i := range uint64(20_000) {
		blocks, _ := chainFrom(i<<32, 2)
		if err := x.Apply(&kvevent.RouterEvent{Owner: o, Kind: kvevent.Stored, Blocks: blocks}); err != nil {
			t.Fatal(err)
		}
	}
	unknown, _ := chainFrom(1<<60, 8192)
	e := &kvevent.RouterEvent{Owner: o, Kind: kvevent.Removed}
	for _, b := range unknown {
		e.Removed = append(e.Removed, b.Hash)
	}
	if err := x.Apply(e); err != nil {
		t.Fatal(err)
	}
	s := x.Stats()
	if s.UnknownRemovals != 8192 {
		t.Errorf("%d unknown removals, want 8192", s.UnknownRemovals)
	}
	if s.Scans > 128 {
		t.Errorf("%d searches for one event, want at most 128", s.Scans)
	}
}

// An event may name the end of a sequence in no order. One of its blocks leads to the others, so that
// the index neither searches for each of them nor needs a directory of every block.
func TestTheEndOfASequenceInNoOrderIsFoundWithoutSearches(t *testing.T) {
	x, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := kv.WorkerOwner(kv.Worker{ID: 1})
	var sequences [][]kvevent.StoredBlock
	for i := range uint64(20) {
		blocks, _ := chainFrom(i<<32, 1000)
		sequences = append(sequences, blocks)
		if err := x.Apply(&kvevent.RouterEvent{Owner: o, Kind: kvevent.Stored, Blocks: blocks}); err != nil {
			t.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, blocks := range sequences {
		for end := len(blocks); end > 0; end -= 100 {
			e := &kvevent.RouterEvent{Owner: o, Kind: kvevent.Removed}
			for _, at := range rng.Perm(100) {
				e.Removed = append(e.Removed, blocks[end-1-at].Hash)
			}
			if err := x.Apply(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := x.Stats()
	if s.Memberships != 0 || s.UnknownRemovals != 0 {
		t.Errorf("%d blocks are left and %d removals were unknown, want 0 and 0", s.Memberships, s.UnknownRemovals)
	}
	if s.Scans != 0 || s.Dense {
		t.Errorf("%d searches and a dense directory: %v, want none", s.Scans, s.Dense)
	}
}

// TestAtTheBudgetNothingNewIsLostBesideReaders: a reader keeps evicted memory from being used again
// while it is inside. The writer waits for readers that stay for less than maxReaderWait, and loses
// no new block. Two readers stay for some milliseconds of the bubble's time and come back at once,
// so that the index is never without one.
func TestAtTheBudgetNothingNewIsLostBesideReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, err := New(Options{MaxBytes: 4 << 20})
		if err != nil {
			t.Fatal(err)
		}
		w := kv.Worker{ID: 1}
		if err := x.SetMember(w, 0, true); err != nil {
			t.Fatal(err)
		}
		var newest atomic.Pointer[[]kv.LocalHash]
		newest.Store(new([]kv.LocalHash))
		var stop atomic.Bool
		var readers sync.WaitGroup
		for r, stay := range []time.Duration{3 * time.Millisecond, 5 * time.Millisecond} {
			readers.Go(func() {
				var m Matches
				for !stop.Load() {
					inside := x.readers.Enter(uint32(r))
					x.Match(&m, *newest.Load(), Continuation)
					<-time.After(stay)
					inside.Add(-1)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		for i := range uint64(3_000) {
			blocks, locals := chainFrom(i<<32, int(1+i*7%300))
			if err := x.Apply(&kvevent.RouterEvent{Owner: kv.WorkerOwner(w), Kind: kvevent.Stored, Blocks: blocks}); err != nil {
				t.Fatal(err)
			}
			newest.Store(&locals)
		}
		if s := x.Stats(); s.Evicted == 0 || s.Lost != 0 || time.Since(began) == 0 {
			t.Errorf("%d blocks were evicted and %d lost; the writer waited for %v", s.Evicted, s.Lost, time.Since(began))
		}
		stop.Store(true)
		readers.Wait()
	})
}
