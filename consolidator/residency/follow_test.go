package residency

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/blockyard-ai/blockyard/consolidator/dense"
	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// stuckSink is a consumer that does not return from Publish until the gate opens, and that
// asks for the state when it is told that there is more of it.
type stuckSink struct {
	gate   chan struct{}
	joined int
	health []kvevent.Health
}

func (s *stuckSink) Publish([]kvevent.RouterEvent)  { <-s.gate }
func (s *stuckSink) StateJoined()                   { s.joined++ }
func (s *stuckSink) HealthChanged(h kvevent.Health) { s.health = append(s.health, h) }

// poolEvent stores a chain of blocks in a pool.
func poolEvent(s *Stream, t kv.Tier, first, blocks int) {
	e := treeEvent(t, first, blocks)
	s.Store(t, 0, false, 0, e.Blocks)
	s.Flush()
}

// pairsOf are blocks first to last-1 in a tier.
func pairsOf(t kv.Tier, first, last int) map[residencytest.Pair]struct{} {
	set := make(map[residencytest.Pair]struct{})
	for i := first; i < last; i++ {
		set[residencytest.Pair{Tier: t, Hash: residencytest.TreeHash(i)}] = struct{}{}
	}
	return set
}

// TestNoStoreWaitsForAConsumer: a consumer of a rank stands still, and the pool stores and
// removes far more than may be kept for it. No call of the pool's stream waits, what is
// kept is bounded, and when the consumer goes on the merged stream holds what the pool
// holds; until then it is degraded.
func TestNoStoreWaitsForAConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := NewStream(kv.PoolOwner(9), nil)
		poolEvent(pool, kv.TierHost, 0, 5120)
		consumer := &stuckSink{gate: make(chan struct{})}
		m := NewMerged(testOwner.Worker(), MergeTiered, consumer)
		join(t, m, pool)
		defer m.Close()

		var written bool
		const runs = 3 * maxFollowItems / 512
		go func() {
			for i := range runs {
				poolEvent(pool, kv.TierDisk, 512*i, 512)
			}
			hashes := make([]kv.SequenceHash, 5120)
			for i := range hashes {
				hashes[i] = residencytest.TreeHash(i)
			}
			pool.Remove(kv.TierHost, hashes)
			pool.Flush()
			pool.Snapshot()
			pool.Status()
			written = true
		}()
		synctest.Wait() // the writer has ended, or waits
		if !written {
			t.Fatal("the pool waits for a consumer")
		}
		m.follower.mu.Lock()
		items := m.follower.items
		m.follower.mu.Unlock()
		if items > maxFollowItems {
			t.Errorf("%d items are kept, want at most %d", items, maxFollowItems)
		}
		close(consumer.gate)
		synctest.Wait()
		residencytest.Check(t, m.out, pairsOf(kv.TierDisk, 0, 512*runs))
		if n := pool.Stats().FollowersCut; n != 1 {
			t.Errorf("cut %d times, want once", n)
		}
		if h := consumer.health; consumer.joined != 2 || len(h) != 2 || h[0] != kvevent.HealthDegraded || h[1] != kvevent.HealthExact {
			t.Errorf("told of more state %d times, health %v", consumer.joined, consumer.health)
		}
	})
}

// TestAdoptionTakesOneChunkAtATime: a rank that joins a pool copies one chunk of the pool's
// table under the stream's lock. Whatever changes between two chunks, before and behind
// the copied ones, the merged stream holds in the end what the pool holds.
func TestAdoptionTakesOneChunkAtATime(t *testing.T) {
	pool := NewStream(kv.PoolOwner(9), nil)
	const chunks = 20
	poolEvent(pool, kv.TierHost, 0, chunks*dense.ChunkSize)
	m := NewMerged(testOwner.Worker(), MergeTiered, nil)
	f := newFollower(m, pool)
	pool.tx.followers = append(pool.tx.followers, f)
	f.endSlot = pool.tx.table.Slots()
	want := pairsOf(kv.TierHost, 0, chunks*dense.ChunkSize)
	next := chunks * dense.ChunkSize
	for steps := 0; f.phase != phaseLive; steps++ {
		before := m.Status().Blocks
		f.step()
		if got := m.Status().Blocks; got > before+dense.ChunkSize+2 {
			t.Fatalf("step %d took in %d blocks, want at most a chunk of %d", steps, got-before, dense.ChunkSize)
		}
		if steps > chunks+1 {
			t.Fatalf("%d steps for %d chunks", steps, chunks)
		}
		// One that is in already, one that is not, and one that was never there.
		for _, i := range []int{steps, (chunks-steps)*dense.ChunkSize - 1} {
			if h := residencytest.TreeHash(max(i, 0)); i >= 0 {
				pool.Remove(kv.TierHost, []kv.SequenceHash{h})
				delete(want, residencytest.Pair{Tier: kv.TierHost, Hash: h})
			}
		}
		poolEvent(pool, kv.TierHost, next, 2)
		want[residencytest.Pair{Tier: kv.TierHost, Hash: residencytest.TreeHash(next)}], want[residencytest.Pair{Tier: kv.TierHost, Hash: residencytest.TreeHash(next + 1)}] = struct{}{}, struct{}{}
		next += 2
	}
	for f.step() {
	}
	residencytest.Check(t, m.out, want)
	residencytest.Check(t, pool, want)
}

// TestFollowersEqualTheirPool: ranks come and go and are cut off while a pool changes; each
// that is there in the end holds what the pool holds.
func TestFollowersEqualTheirPool(t *testing.T) {
	synctest.Test(t, followersEqualTheirPool)
}

func followersEqualTheirPool(t *testing.T) {
	pool := NewStream(kv.PoolOwner(9), nil)
	poolEvent(pool, kv.TierDisk, 0, 3*dense.ChunkSize)
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		random := rand.New(rand.NewPCG(1, 2))
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			h, tier := residencytest.TreeHash(random.IntN(6*dense.ChunkSize)), kv.Tiers[1+random.IntN(2)]
			group, hashes := uint32(random.IntN(3)), []kv.SequenceHash{h}
			switch store := random.IntN(2) == 0; {
			case store && group == 0:
				pool.Store(tier, 0, false, 0, []kvevent.StoredBlock{{Hash: h}})
			case store:
				pool.StoreGroup(tier, group, hashes)
			default:
				pool.RemoveGroup(tier, group, hashes)
			}
			if i%9 == 0 {
				pool.Flush()
			}
		}
	})
	var all []*Merged
	for i := range 24 {
		m := NewMerged(testOwner.Worker(), []MergeMode{MergeTiered, MergeDedup}[i%2], nil)
		if err := m.FollowPool(pool); err != nil {
			t.Fatal(err)
		}
		m.follower.mu.Lock()
		m.follower.limit = 64 << (i % 8) // the small ones are cut off
		m.follower.mu.Unlock()
		switch i % 3 {
		case 0:
			m.Close()
		case 1:
			<-m.Joined()
			fallthrough
		default:
			all = append(all, m)
		}
	}
	close(stop)
	writer.Wait()
	pool.Flush()
	events, _, _ := pool.Snapshot()
	tiered, dedup := make(map[residencytest.Pair]struct{}), make(map[residencytest.Pair]struct{})
	for i := range events {
		for _, b := range events[i].Blocks {
			k := residencytest.Pair{Tier: events[i].Tier, Hash: b.Hash, Group: events[i].Group}
			tiered[k] = struct{}{}
			k.Tier = kv.TierDevice
			dedup[k] = struct{}{}
		}
	}
	synctest.Wait()
	for i, m := range all {
		want := tiered
		if m.mode == MergeDedup {
			want = dedup
		}
		residencytest.Check(t, m.out, want)
		if h := m.Status().Health; h != kvevent.HealthExact {
			t.Errorf("rank %d is %s", i, h)
		}
		m.Close()
	}
	t.Logf("cut off %d times", pool.Stats().FollowersCut)
}

// eventLog keeps copies of the events of a stream.
type eventLog struct{ events []kvevent.RouterEvent }

func (l *eventLog) Publish(events []kvevent.RouterEvent) {
	for _, e := range events {
		e.Blocks, e.Removed = append([]kvevent.StoredBlock(nil), e.Blocks...), append([]kv.SequenceHash(nil), e.Removed...)
		l.events = append(l.events, e)
	}
}

// TestSnapshotsAreExactWhileStoresGoOn: each of the snapshots that several consumers take
// while a stream changes is what the events up to its id say, neither more nor less.
func TestSnapshotsAreExactWhileStoresGoOn(t *testing.T) {
	log := &eventLog{}
	s := NewStream(kv.PoolOwner(9), log)
	poolEvent(s, kv.TierHost, 0, 4*dense.ChunkSize)
	type taken struct {
		events       []kvevent.RouterEvent
		last, digest uint64
	}
	snapshots := make([][]taken, 2)
	var readers sync.WaitGroup
	for i := range snapshots {
		readers.Go(func() {
			for range 12 {
				var one taken
				one.events, one.last, one.digest = s.Snapshot()
				snapshots[i] = append(snapshots[i], one)
			}
		})
	}
	done := make(chan struct{})
	go func() { readers.Wait(); close(done) }()
	random := rand.New(rand.NewPCG(3, 4))
	for more := true; more; {
		for range 100 {
			h := residencytest.TreeHash(random.IntN(8 * dense.ChunkSize))
			if random.IntN(2) == 0 {
				s.Store(kv.TierHost, 0, false, 0, []kvevent.StoredBlock{{Hash: h}})
			} else {
				s.Remove(kv.TierHost, []kv.SequenceHash{h})
			}
		}
		select {
		case <-done:
			more = false
		default:
		}
	}
	for _, list := range snapshots {
		set, at := make(map[residencytest.Pair]struct{}), 0
		for _, one := range list {
			for ; at < len(log.events) && log.events[at].ID <= one.last; at++ {
				residencytest.Replay(t, set, &log.events[at])
			}
			dump := make(map[residencytest.Pair]struct{})
			for i := range one.events {
				residencytest.Replay(t, dump, &one.events[i])
			}
			if residencytest.Digest(dump) != one.digest || residencytest.Digest(set) != one.digest || len(dump) != len(set) {
				t.Fatalf("at event %d: the snapshot has %d blocks, the events say %d", one.last, len(dump), len(set))
			}
		}
	}
}
