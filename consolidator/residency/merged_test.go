package residency

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

var mergeModes = map[string]MergeMode{"tiered": MergeTiered, "dedup": MergeDedup}

// mergeBench is a Merged with a worker's stream and a pool's in front of it.
type mergeBench struct {
	merged    *Merged
	own, pool *Stream
	rec       *residencytest.Recorder
}

func newMergeBench(t *testing.T, mode MergeMode) *mergeBench {
	b := &mergeBench{rec: residencytest.NewRecorder(t)}
	b.merged = NewMerged(testOwner.Worker(), mode, b.rec)
	b.own = NewStream(testOwner, b.merged.Own())
	b.pool = NewStream(kv.PoolOwner(9), &b.merged.pool)
	return b
}

// join makes m follow a pool and waits until it holds what the pool holds. Later
// changes of the pool are in the merged stream after synctest.Wait.
func join(t *testing.T, m *Merged, pool *Stream) {
	t.Helper()
	if err := m.FollowPool(pool); err != nil {
		t.Fatal(err)
	}
	<-m.Joined()
}

// setHealth says how far a stream can be trusted.
func setHealth(s *Stream, h kvevent.Health) { s.Update(func(tx *Tx) { tx.SetHealth(h) }) }

// chain stores blocks first to last in tier t of s, one after the other and the
// first one at the root.
func chain(s *Stream, t kv.Tier, first, last int) {
	for h := first; h <= last; h++ {
		s.Store(t, kv.SequenceHash(h-1), h > first, uint32(h-first), []kvevent.StoredBlock{{Hash: kv.SequenceHash(h)}})
	}
	s.Flush()
}

func unchain(s *Stream, t kv.Tier, hashes ...kv.SequenceHash) {
	s.Remove(t, hashes)
	s.Flush()
}

func (b *mergeBench) said(t *testing.T, want string) {
	t.Helper()
	if got := b.rec.Take(); got != want {
		t.Errorf("the events are\n%swant\n%s", got, want)
	}
}

func TestUnknownRemoveIsCountedAndSilent(t *testing.T) {
	b := newMergeBench(t, MergeTiered)
	chain(b.own, kv.TierDevice, 1, 1)
	b.rec.Take()
	b.merged.pool.Publish([]kvevent.RouterEvent{{Kind: kvevent.Removed, Tier: kv.TierDevice, Removed: []kv.SequenceHash{1, 2}}})
	b.said(t, "")
	if n := b.merged.Stats().UnknownRemoves; n != 2 {
		t.Errorf("%d unknown removals, want 2", n)
	}
}

// A worker that joins a warm pool must not store all of it by events; its state has
// it at once, and a sink that cannot ask for state is told.
func TestJoiningAWarmPoolIsSilentAndItsEndIsNot(t *testing.T) {
	watcher := &joinWatcher{}
	m := NewMerged(testOwner.Worker(), MergeTiered, watcher)
	pool := NewStream(kv.PoolOwner(9), nil)
	chain(pool, kv.TierHost, 1, 600)
	join(t, m, pool)
	if watcher.events != 0 || watcher.joined != 1 {
		t.Errorf("told %d times, with %d events", watcher.joined, watcher.events)
	}
	events, _, _ := m.Snapshot()
	blocks := 0
	for i := range events {
		blocks += events[i].NumBlocks()
		if events[i].Owner != testOwner {
			t.Fatalf("event %d is of %s", i, events[i].Owner)
		}
	}
	if blocks != 600 || m.Status().Blocks != 600 {
		t.Errorf("the snapshot has %d blocks, the status %d, want 600", blocks, m.Status().Blocks)
	}
	m.Close()
	if st := m.Status(); st.Blocks != 0 || st.Digest != 0 || watcher.joined != 1 {
		t.Errorf("closed, and it holds %+v, told %d times", st, watcher.joined)
	}
}

// joinWatcher counts events and what it is told of silent growth.
type joinWatcher struct{ events, joined int }

func (w *joinWatcher) StateJoined() { w.joined++ }

func (w *joinWatcher) Publish(events []kvevent.RouterEvent) { w.events += len(events) }

// The way in which an agent puts the streams together, in either order.
func TestSinksAndSourcesThatComeLateGetTheWholeState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, pool := NewStream(testOwner, nil), NewStream(kv.PoolOwner(9), nil)
		chain(pool, kv.TierHost, 1, 3)
		m := NewMerged(testOwner.Worker(), MergeTiered, nil)
		defer m.Close()
		if err := own.AddSink(m.Own()); err != nil {
			t.Fatal(err)
		}
		chain(own, kv.TierDevice, 1, 2)
		join(t, m, pool)
		rec := residencytest.NewRecorder(t)
		if err := addRecorder(m.out, rec); err != nil {
			t.Fatal(err)
		}
		chain(own, kv.TierDevice, 7, 7)
		unchain(pool, kv.TierHost, 3)
		synctest.Wait()
		residencytest.Check(t, m.out, rec.Resident())
		pool.Clear()
		synctest.Wait()
		residencytest.Check(t, m.out, rec.Resident())
		if n := m.Status().Blocks; n != 3 {
			t.Errorf("%d blocks are left, want 3", n)
		}
		m.RemoveSink(rec)
		own.Clear()
		if len(rec.Resident()) != 3 {
			t.Error("a sink that was removed is still called")
		}
	})
}

func TestHealthOfTheWorkerIsTheMergedStreams(t *testing.T) {
	b := newMergeBench(t, MergeTiered)
	setHealth(b.own, kvevent.HealthDegraded)
	setHealth(b.pool, kvevent.HealthGone)
	setHealth(b.own, kvevent.HealthExact)
	if got := fmt.Sprint(b.rec.Health()); got != "[degraded exact]" {
		t.Errorf("told %s", got)
	}
}

func TestMergedSnapshotHasParentsBeforeChildrenOfTheOtherSource(t *testing.T) {
	b := newMergeBench(t, MergeTiered)
	chain(b.pool, kv.TierDisk, 1, 4)
	b.own.Store(kv.TierDevice, 4, true, 4, []kvevent.StoredBlock{{Hash: 5}})
	b.own.Flush()
	events, _, _ := b.merged.Snapshot()
	var order []kv.SequenceHash
	for i := range events {
		for _, s := range events[i].Blocks {
			order = append(order, s.Hash)
		}
	}
	if !slices.Equal(order, []kv.SequenceHash{1, 2, 3, 4, 5}) {
		t.Errorf("the snapshot's order is %v", order)
	}
}

func TestMergedAllocatesNothingPerBlock(t *testing.T) {
	m := NewMerged(testOwner.Worker(), MergeTiered, nil)
	s := NewStream(testOwner, m.Own())
	blocks := make([]kvevent.StoredBlock, 512)
	hashes := make([]kv.SequenceHash, len(blocks))
	for i := range blocks {
		hashes[i] = residencytest.TreeHash(i)
		blocks[i].Hash = hashes[i]
	}
	turn := func() {
		s.Store(kv.TierDevice, 0, false, 0, blocks)
		s.Flush()
		s.Remove(kv.TierDevice, hashes)
		s.Flush()
	}
	turn()
	if n := testing.AllocsPerRun(20, turn); n > 0 {
		t.Errorf("%v allocations per turn of %d blocks", n, len(blocks))
	}
}
