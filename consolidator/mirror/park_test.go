package mirror

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/residency/residencytest"
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// TestOrderOfStoresDoesNotMatter: the stores of a forest, each of one block, may
// come in any order: when all have come, nothing waits and everything is where it
// would be otherwise, less what was removed meanwhile.
func TestOrderOfStoresDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		e := newTruthEngine(rt)
		var order []int
		for b := range e.tree.Parent {
			order = append(order, b)
		}
		order = rapid.Permutation(order).Draw(rt, "order")
		rec := residencytest.NewRecorder(t)
		s := residency.NewStream(testOwner, rec)
		c := newCache(s, testBlockSize, 1000)
		want := make(map[residencytest.Pair]struct{})
		for i, b := range order {
			c.Apply(&engineevent.Batch{Events: []engineevent.Event{e.single(b)}})
			want[residencytest.Pair{Tier: kv.TierDevice, Hash: e.sequence(b)}] = struct{}{}
			if gone := order[rapid.IntRange(0, i).Draw(rt, "gone")]; rapid.Bool().Draw(rt, "remove") && e.held[engineName(gone)] > 0 {
				removed := e.event(kvevent.Removed)
				removed.BlockHashes = []kv.EngineHash{engineName(gone)}
				c.Apply(&engineevent.Batch{Events: []engineevent.Event{removed}})
				delete(e.held, engineName(gone))
				delete(want, residencytest.Pair{Tier: kv.TierDevice, Hash: e.sequence(gone)})
			}
		}
		s.Flush()
		set := rec.Resident()
		residencytest.Check(t, s, set)
		for k := range set {
			if _, ok := want[k]; !ok {
				rt.Fatalf("block %x is claimed and was removed or never stored", uint64(k.Hash))
			}
		}
		if c.park.empty() && len(set) != len(want) {
			rt.Fatalf("%d blocks, want %d", len(set), len(want))
		}
		if rapid.Bool().Draw(rt, "clear") {
			s.Update(c.clearDevice)
		} else {
			removed := e.event(kvevent.Removed)
			for h, n := range e.held {
				removed.BlockHashes = append(removed.BlockHashes, slices.Repeat([]kv.EngineHash{h}, n)...)
			}
			c.Apply(&engineevent.Batch{Events: []engineevent.Event{removed}})
		}
		s.Flush()
		if !c.park.empty() || c.park.bytes != 0 || len(c.park.byParent)+len(c.park.byBlock)+len(c.park.fullyRemoved) != 0 || len(rec.Resident()) != 0 {
			rt.Fatalf("the engine holds nothing, and %d bytes wait", c.park.bytes)
		}
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// single is the store of one block.
func (e *truthEngine) single(b int) engineevent.Event {
	ev := e.event(kvevent.Stored)
	path := e.tree.Path(b)
	ev.LoRAName = e.lora[path[0]]
	if len(path) > 1 {
		ev.Parent, ev.HasParent = engineName(path[len(path)-2]), true
	} else {
		ev.Salt = e.salt[path[0]]
	}
	ev.BlockHashes = []kv.EngineHash{engineName(b)}
	for j := range testBlockSize {
		ev.Tokens = append(ev.Tokens, uint32(b*testBlockSize+j))
	}
	e.held[engineName(b)]++
	return ev
}

// TestParkIsBounded: what waits needs no more than its bytes; the oldest goes for
// the newest, is counted, and the stream is no longer exact.
func TestParkIsBounded(t *testing.T) {
	s := residency.NewStream(testOwner, nil)
	c := newCache(s, testBlockSize, 1<<20)
	c.park.limit = 10_000
	for i := range 1000 {
		c.Apply(&engineevent.Batch{Events: []engineevent.Event{residencytest.StoredEvent(1_000_000+i, 10*i+1, 3)}})
		if c.park.bytes > c.park.limit {
			t.Fatalf("%d bytes wait", c.park.bytes)
		}
	}
	waiting := uint64(3 * c.park.runs)
	parked, overflow, dropped := c.count.Parked.Load(), c.count.ParkOverflow.Load(), c.count.Dropped()["unknown_parent"]
	if parked != 3000 || waiting == 0 || overflow != 3000-waiting || dropped != 3000-waiting {
		t.Errorf("%d of %d blocks wait, %d had to go, %d were dropped", waiting, parked, overflow, dropped)
	}
	if n := len(c.park.byAge); n > 64+2*c.park.runs+1 {
		t.Errorf("%d entries for %d runs", n, c.park.runs)
	}
	if h := s.Status().Health; h != kvevent.HealthDegraded {
		t.Errorf("health %s", h)
	}
	// One that is larger than all of it is dropped at once.
	before := c.park.bytes
	c.Apply(&engineevent.Batch{Events: []engineevent.Event{residencytest.StoredEvent(77, 500_000, 200)}})
	if c.park.bytes != before || c.count.ParkOverflow.Load() != 3200-waiting {
		t.Errorf("%d bytes wait, %d blocks had to go", c.park.bytes, c.count.ParkOverflow.Load())
	}
}

// TestRunsGoWithTheLastOfWhatHangsOnThem: a run of which nothing is left stays for its
// children only, so that a stream whose engine holds nothing becomes exact.
func TestRunsGoWithTheLastOfWhatHangsOnThem(t *testing.T) {
	s := residency.NewStream(testOwner, nil)
	c := newCache(s, testBlockSize, 1<<20)
	now := time.Unix(1000, 0)
	c.cfg.Now = func() time.Time { return now }
	c.Apply(&engineevent.Batch{Events: []engineevent.Event{
		residencytest.StoredEvent(99, 1, 1), residencytest.StoredEvent(1, 2, 1), residencytest.StoredEvent(2, 3, 1), residencytest.RemovedEvent(1), residencytest.RemovedEvent(2),
	}})
	if c.park.runs != 3 {
		t.Errorf("%d runs wait, want 3: the last one needs the others", c.park.runs)
	}
	c.Apply(&engineevent.Batch{Events: []engineevent.Event{residencytest.RemovedEvent(3)}})
	now = now.Add(time.Hour)
	c.Tick()
	if h := s.Status().Health; h != kvevent.HealthExact || !c.park.empty() || c.park.bytes != 0 {
		t.Errorf("health %s, %d runs with %d bytes wait", h, c.park.runs, c.park.bytes)
	}
}
