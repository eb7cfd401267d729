package miss

import (
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is when the tests begin.
var start = time.Unix(1000, 0)

func worker(id uint64) kv.Owner { return kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(id)}) }

// A Memory that is not full remembers the newest departure of each block from each owner, as a list
// of all departures does.
func TestMemoryIsAListOfDepartures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type key struct {
			block kv.SequenceHash
			owner kv.Owner
		}
		m := NewMemory(4, start) // one bucket: every block meets every other one
		h, foreign := m.Of(), m.Of()
		twin, now := make(map[key]time.Time), start
		for range rapid.IntRange(1, 4).Draw(t, "departures") {
			now = now.Add(time.Second)
			block, owner := kv.SequenceHash(rapid.Uint64Range(1, 3).Draw(t, "block")), worker(rapid.Uint64Range(1, 2).Draw(t, "owner"))
			if rapid.Bool().Draw(t, "foreign") {
				foreign.Removed(owner, kv.TierDevice, []kv.SequenceHash{block}, Moment{At: now})
				continue
			}
			h.Removed(owner, kv.TierDevice, []kv.SequenceHash{block}, Moment{At: now})
			twin[key{block, owner}] = now
		}
		for block := range kv.SequenceHash(4) {
			for id := range uint64(3) {
				got, ok := h.last(block, func(d *departure) bool { return d.owner == worker(id) })
				want, known := twin[key{block, worker(id)}]
				if ok != known || ok && !got.at.Equal(want) {
					t.Fatalf("block %d of worker %d left at %v (%v), want %v (%v)", block, id, got.at, ok, want, known)
				}
			}
		}
	})
}

// A full bucket forgets its oldest block, and counts it.
func TestMemoryForgetsTheOldest(t *testing.T) {
	m := NewMemory(1, start)
	h := m.Of()
	for i := range kv.SequenceHash(5) {
		h.Removed(worker(1), kv.TierDevice, []kv.SequenceHash{i + 1}, Moment{At: start.Add(time.Duration(i+1) * time.Second)})
	}
	for i := range kv.SequenceHash(5) {
		if _, ok := h.last(i+1, func(*departure) bool { return true }); ok != (i > 0) {
			t.Errorf("block %d is remembered: %v", i+1, ok)
		}
	}
	if s := m.Stats(); s.Removals != 5 || s.Forgotten != 1 || s.Bytes != 4*recordBytes {
		t.Errorf("%+v, want 5 removals, 1 forgotten, 4 places", s)
	}
}

// Beyond its bound an ownerTable gives the place of the oldest owner away, whose number then names
// nobody.
func TestOwnerTableIsBounded(t *testing.T) {
	owners, h := newOwnerTable(), new(History)
	first := owners.id(ownerKey{h, worker(1)})
	owners.drop(ownerKey{h, worker(1)}, 7)
	for id := range uint64(maxOwners) {
		owners.id(ownerKey{h, worker(id + 2)})
	}
	if key, ok := owners.of(first); ok || len(owners.ids) != maxOwners || len(owners.list) != maxOwners {
		t.Errorf("the first owner is %v, %v; the table has %d and %d owners", key, ok, len(owners.ids), len(owners.list))
	}
	if at := owners.droppedAt(ownerKey{h, worker(1)}); at != 0 {
		t.Errorf("a forgotten owner dropped its blocks at %d", at)
	}
}

// blocks are stored blocks of hashes.
func blocks(hashes ...kv.SequenceHash) (out []kvevent.StoredBlock) {
	for _, h := range hashes {
		out = append(out, kvevent.StoredBlock{Hash: h})
	}
	return out
}

// Late stores are found while their ring has them, however many events and blocks came.
func TestLateStoresAreARing(t *testing.T) {
	h := NewMemory(4, start).Of()
	at := start.Add(time.Hour)
	any := func(*departure) bool { return true }
	h.Stored(worker(1), kv.TierDevice, blocks(1), Moment{At: at, Late: time.Second})
	h.Stored(worker(1), kv.TierDevice, blocks(2), Moment{At: at, Late: Resolution / 2}) // in time
	since := at.Add(-time.Second / 2)
	if d, ok := h.storedLate(1, since, any); !ok || d.owner != worker(1) || d.late != time.Second {
		t.Errorf("a late store is %+v, %v", d, ok)
	}
	for name, c := range map[string]struct {
		block kv.SequenceHash
		since time.Time
	}{"a store in time": {2, since}, "an unknown block": {3, since}, "a store before": {1, at.Add(1)}, "a store that was published after": {1, at.Add(-time.Second)}} {
		if d, ok := h.storedLate(c.block, c.since, any); ok {
			t.Errorf("%s was late: %+v", name, d)
		}
	}
	many := make([]kv.SequenceHash, maxLateBlocks)
	for i := range many {
		many[i] = kv.SequenceHash(i + 10)
	}
	h.Stored(worker(1), kv.TierDevice, blocks(many...), Moment{At: at, Late: time.Second})
	if _, ok := h.storedLate(1, since, any); ok {
		t.Error("a block is found whose place another one took")
	}
	if _, ok := h.storedLate(many[0], since, any); !ok {
		t.Error("the first block of a large event is not found")
	}
	for range maxLateEvents {
		h.Stored(worker(2), kv.TierDevice, nil, Moment{At: at, Late: time.Second})
	}
	if _, ok := h.storedLate(many[0], since, any); ok {
		t.Error("a block is found whose event was forgotten")
	}
}

// The parts of any report add up to the tokens that were not delivered, in a bounded number of parts.
func TestPartsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := NewMemory(64, start).Of()
		decided := start.Add(time.Minute)
		size := rapid.IntRange(1, 4).Draw(t, "block size")
		p := Prompt{Tokens: rapid.IntRange(1, 400).Draw(t, "tokens"), BlockSize: size, Worker: kv.Worker{ID: 1}, Pool: 7, Decided: decided,
			Best: kv.Worker{ID: 2}, BestBlocks: rapid.IntRange(0, 5).Draw(t, "best")}
		for i := range p.Tokens / size {
			p.Blocks = append(p.Blocks, kv.SequenceHash(i+1))
			if rapid.IntRange(0, 3).Draw(t, "left") == 0 {
				owner := worker(rapid.Uint64Range(1, 40).Draw(t, "owner"))
				at := decided.Add(time.Duration(rapid.IntRange(-9, 9).Draw(t, "at")) * time.Second)
				h.Removed(owner, kv.Tier(rapid.IntRange(0, 3).Draw(t, "tier")), p.Blocks[i:], Moment{At: at})
			}
		}
		cacheable := (p.Tokens - 1) / size * size
		o := Outcome{Predicted: rapid.IntRange(0, cacheable).Draw(t, "predicted"), Delivered: rapid.IntRange(0, p.Tokens).Draw(t, "delivered"),
			Cacheable: cacheable, Computed: decided.Add(time.Second), Unsure: rapid.SampledFrom([]Cause{None, LostEvents, HandOver}).Draw(t, "unsure")}
		p.Hits[kv.TierDevice] = uint32(o.Predicted / size)
		r := h.Explain(&p, &o)
		sum := o.Delivered
		for _, part := range r.Parts {
			if sum += part.Tokens; part.Tokens <= 0 || part.Cause == None {
				t.Fatalf("part %+v", part)
			}
		}
		if sum != p.Tokens || len(r.Parts) > maxParts+int(numCauses) {
			t.Fatalf("%d tokens of %d in %d parts: %+v", sum, p.Tokens, len(r.Parts), r.Parts)
		}
		if by := o.Delivered - o.Predicted; r.Difference.Tokens != by || (r.Difference.Cause == None) != (by == 0) {
			t.Fatalf("the difference of %d tokens is %+v", by, r.Difference)
		}
	})
}

// A load within a step leaves the last token of a prompt of whole blocks to the step. Nothing is wrong
// with the tier. Of a second token that lacks the tier is the cause.
func TestTheLastTokenIsComputed(t *testing.T) {
	h := NewMemory(64, start).Of()
	p := Prompt{Tokens: 8, BlockSize: 4, Worker: kv.Worker{ID: 1}, Pool: 7, Decided: start.Add(time.Minute), Blocks: make([]kv.SequenceHash, 2)}
	p.Hits[kv.TierHost] = 2
	for delivered, want := range map[int]Part{7: {Cause: LastBlock, Tokens: 1}, 6: {Cause: TierSlow, Tokens: 2, Owner: kv.PoolOwner(7), Tier: kv.TierHost}} {
		r := h.Explain(&p, &Outcome{Predicted: 8, Delivered: delivered, Cacheable: 8})
		if len(r.Parts) != 1 || r.Parts[0] != want || r.Difference.Cause != want.Cause {
			t.Errorf("%d of 8 tokens delivered: %+v", delivered, r)
		}
	}
}

// A forgotten block before remembered ones has their cause. Behind the last one everything is new.
func TestForgottenBlock(t *testing.T) {
	h := NewMemory(64, start).Of()
	p := Prompt{Tokens: 40, BlockSize: 4, Worker: kv.Worker{ID: 1}, Decided: start.Add(time.Minute), Blocks: make([]kv.SequenceHash, 10)}
	for i := range p.Blocks {
		p.Blocks[i] = kv.SequenceHash(i + 1)
	}
	h.Removed(worker(2), kv.TierDisk, []kv.SequenceHash{1, 3}, Moment{At: start.Add(time.Second)})
	r := h.Explain(&p, &Outcome{Cacheable: 36})
	want := []Part{{Cause: Evicted, Tokens: 12, Owner: worker(2), Tier: kv.TierDisk, Ago: 59 * time.Second},
		{Cause: NewContent, Tokens: 24}, {Cause: LastBlock, Tokens: 4}}
	if len(r.Parts) != 3 || r.Parts[0] != want[0] || r.Parts[1] != want[1] || r.Parts[2] != want[2] {
		t.Errorf("parts %+v, want %+v", r.Parts, want)
	}
}

// An owner that drops its blocks leaves them in the memory, at most a quarter of it. So does a dump,
// but then the blocks count as evicted.
func TestDroppedOwner(t *testing.T) {
	x, err := index.New(index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e := kvevent.RouterEvent{Owner: worker(2), Kind: kvevent.Stored, ID: 1}
	for i := range 1000 {
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: kv.SequenceHash(i + 1), Local: kv.LocalHash(i + 1)})
	}
	if err := x.Apply(&e); err != nil {
		t.Fatal(err)
	}
	m := NewMemory(1024, start)
	h := m.Of()
	at := Moment{At: start.Add(time.Second)}
	h.Replaced(worker(2), x, at)
	if s := m.Stats(); s.Removals < 256 || s.Removals > 256+128 {
		t.Errorf("%d blocks are remembered, want a quarter of 1024 and at most a run more", s.Removals)
	}
	p := Prompt{Tokens: 5, BlockSize: 4, Blocks: []kv.SequenceHash{1}, Worker: kv.Worker{ID: 1}, Decided: start.Add(2 * time.Second)}
	if r := h.Explain(&p, &Outcome{Cacheable: 4}); r.Parts[0].Cause != Evicted {
		t.Errorf("after a dump: %+v", r.Parts)
	}
	at.At = at.At.Add(time.Millisecond)
	h.Dropped(worker(2), x, at)
	if r := h.Explain(&p, &Outcome{Cacheable: 4}); r.Parts[0].Cause != Restarted || r.Parts[0].Owner != worker(2) {
		t.Errorf("after a drop: %+v", r.Parts)
	}
}
