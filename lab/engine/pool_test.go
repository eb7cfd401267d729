package engine

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// naivePool is a pool as one would write it on paper: a slice for the queue, a
// search for everything.
type naivePool struct {
	refs   map[int32]int
	queue  []int32
	cached map[int32]kv.EngineHash
	events map[kv.EngineHash]int // the multiset that a subscriber would hold
}

// apply replays events into a multiset of hashes.
func (n *naivePool) apply(t *rapid.T, events []engineevent.Event) {
	for _, e := range events {
		switch e.Kind {
		case kvevent.Cleared:
			clear(n.events)
		case kvevent.Stored:
			for _, h := range e.BlockHashes {
				n.events[h]++
			}
		case kvevent.Removed:
			for _, h := range e.BlockHashes {
				if n.events[h]--; n.events[h] < 0 {
					t.Fatalf("hash %d removed more often than stored", h)
				}
				if n.events[h] == 0 {
					delete(n.events, h)
				}
			}
		}
	}
}

// poolModel drives a pool and its twin alike.
type poolModel struct {
	pool *pool
	twin naivePool
	held [][]int32 // blocks that the test references
}

func newPoolModel(t *rapid.T) *poolModel {
	n := rapid.IntRange(1, 12).Draw(t, "blocks")
	m := &poolModel{pool: newPool(n, 1), twin: naivePool{
		refs: map[int32]int{}, cached: map[int32]kv.EngineHash{}, events: map[kv.EngineHash]int{},
	}}
	for i := range int32(n) {
		m.twin.queue = append(m.twin.queue, i)
	}
	return m
}

func drawIDs(t *rapid.T) []identity {
	ids := make([]identity, rapid.IntRange(1, 4).Draw(t, "n"))
	for i := range ids {
		h := rapid.IntRange(1, 6).Draw(t, "hash")
		ids[i] = identity{engine: kv.EngineHash(h), seq: kv.SequenceHash(h)}
	}
	return ids
}

// storeNew takes blocks and gives them content.
func (m *poolModel) storeNew(t *rapid.T) {
	ids := drawIDs(t)
	if fits := len(ids) <= len(m.twin.queue); fits != m.pool.fits(len(ids), nil) {
		t.Fatalf("fits(%d) = %t with %d free", len(ids), !fits, len(m.twin.queue))
	} else if !fits {
		return
	}
	want := slices.Clone(m.twin.queue[:len(ids)])
	m.twin.queue = m.twin.queue[len(ids):]
	got := m.pool.take(nil, len(ids))
	if !slices.Equal(got, want) {
		t.Fatalf("took %v, want the oldest %v", got, want)
	}
	m.pool.store(got, ids, nil, make([]uint32, len(ids)))
	for i, b := range got {
		m.twin.refs[b] = 1
		m.twin.cached[b] = ids[i].engine
	}
	m.held = append(m.held, got)
}

// hit references the longest cached prefix.
func (m *poolModel) hit(t *rapid.T) {
	ids := drawIDs(t)
	got := m.pool.match(nil, ids)
	for i, b := range got {
		if m.twin.cached[b] != ids[i].engine {
			t.Fatalf("match %d is block %d, which holds %d", ids[i].engine, b, m.twin.cached[b])
		}
	}
	if len(got) < len(ids) {
		for b, h := range m.twin.cached {
			if h == ids[len(got)].engine {
				t.Fatalf("match stopped before hash %d, which block %d holds", h, b)
			}
		}
	}
	m.pool.touch(got)
	for _, b := range got {
		m.twin.refs[b]++
		m.twin.queue = slices.DeleteFunc(m.twin.queue, func(q int32) bool { return q == b })
	}
	if len(got) > 0 {
		m.held = append(m.held, got)
	}
}

func (m *poolModel) releaseOne(t *rapid.T) {
	if len(m.held) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(t, "held")
	blocks := m.held[i]
	m.held = slices.Delete(m.held, i, i+1)
	m.pool.release(blocks)
	for _, b := range slices.Backward(blocks) {
		if m.twin.refs[b]--; m.twin.refs[b] == 0 {
			delete(m.twin.refs, b)
			m.twin.queue = append(m.twin.queue, b)
		}
	}
}

func (m *poolModel) reset(t *rapid.T) {
	if ok := m.pool.reset(); ok != (len(m.twin.refs) == 0) {
		t.Fatalf("reset = %t with %d blocks referenced", ok, len(m.twin.refs))
	} else if ok {
		clear(m.twin.cached)
	}
}

// check compares pool, twin and what a subscriber would believe.
func (m *poolModel) check(t *rapid.T) {
	held := map[kv.EngineHash]int{}
	for b, d := range m.pool.blocks {
		if int(d.refs) != m.twin.refs[int32(b)] {
			t.Fatalf("block %d has %d references, want %d", b, d.refs, m.twin.refs[int32(b)])
		}
		inQueue := slices.Contains(m.twin.queue, int32(b))
		if inQueue == (d.refs > 0) {
			t.Fatalf("block %d: %d references, in free queue: %t", b, d.refs, inQueue)
		}
		if hash, ok := m.twin.cached[int32(b)]; ok != d.cached || d.id.engine != hash {
			t.Fatalf("block %d holds %d (%t), want %d (%t)", b, d.id.engine, d.cached, hash, ok)
		}
		if d.cached {
			held[d.id.engine]++
		}
	}
	if m.pool.free.n != len(m.twin.queue) {
		t.Fatalf("%d free, want %d", m.pool.free.n, len(m.twin.queue))
	}
	m.twin.apply(t, m.pool.takeEvents())
	if fmt.Sprint(held) != fmt.Sprint(m.twin.events) {
		t.Fatalf("a subscriber believes %v, the pool holds %v", m.twin.events, held)
	}
	if got := len(m.pool.resident()); got != len(held) {
		t.Fatalf("%d hashes listed, %d held", got, len(held))
	}
}

func TestPoolAgainstNaiveTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newPoolModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"store":   m.storeNew,
			"hit":     m.hit,
			"release": m.releaseOne,
			"reset":   m.reset,
			"":        m.check,
		})
	})
}

func TestPoolDuplicatesAreStoredAndRemovedOnceEach(t *testing.T) {
	p := newPool(3, 1)
	id := identity{engine: 9, seq: 9}
	for range 2 {
		p.store(p.take(nil, 1), []identity{id}, nil, []uint32{1})
	}
	p.release([]int32{0})
	p.release([]int32{1})
	p.take(nil, 3)
	stored, removed := 0, 0
	for _, e := range p.takeEvents() {
		switch e.Kind {
		case kvevent.Stored:
			stored++
		case kvevent.Removed:
			removed++
		}
	}
	if stored != 2 || removed != 2 {
		t.Errorf("%d stored and %d removed events, want 2 and 2", stored, removed)
	}
}

func TestPoolEvictsTheEndOfASequenceFirst(t *testing.T) {
	p := newPool(3, 1)
	blocks := p.take(nil, 3)
	p.store(blocks, []identity{{engine: 1}, {engine: 2}, {engine: 3}}, nil, make([]uint32, 3))
	p.release(blocks)
	p.takeEvents()
	p.take(nil, 1)
	if e := p.takeEvents(); len(e) != 1 || e[0].BlockHashes[0] != 3 {
		t.Errorf("evicted %v, want hash 3", e)
	}
	if got := p.match(nil, []identity{{engine: 1}, {engine: 2}, {engine: 3}}); len(got) != 2 {
		t.Errorf("%d blocks still match, want 2", len(got))
	}
}
