package index_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/index"
)

// twin is the index as anybody would write it first: sets.
type twin struct {
	held  map[kv.Owner]map[pair]bool
	pools map[kv.Worker]uint64 // the known workers
	// tree is where every block ever told of belongs.
	tree map[kv.SequenceHash]place
}

type pair struct {
	hash kv.SequenceHash
	tier kv.Tier
}

type place struct {
	parent    kv.SequenceHash
	hasParent bool
	local     kv.LocalHash
}

func newTwin() *twin {
	return &twin{
		held: make(map[kv.Owner]map[pair]bool), pools: make(map[kv.Worker]uint64),
		tree: make(map[kv.SequenceHash]place),
	}
}

func (w *twin) apply(e *kvevent.RouterEvent) {
	set := w.held[e.Owner]
	if set == nil {
		set = make(map[pair]bool)
		w.held[e.Owner] = set
	}
	switch e.Kind {
	case kvevent.Cleared:
		clear(set)
	case kvevent.Stored:
		above := place{parent: e.Parent, hasParent: e.HasParent}
		for _, b := range e.Blocks {
			above.local = b.Local
			w.tree[b.Hash] = above
			above = place{parent: b.Hash, hasParent: true}
			set[pair{b.Hash, e.Tier}] = true
		}
	case kvevent.Removed:
		for _, h := range e.Removed {
			delete(set, pair{h, e.Tier})
		}
	}
}

func (w *twin) replace(o kv.Owner, events []kvevent.RouterEvent) {
	delete(w.held, o)
	for i := range events {
		w.apply(&events[i])
	}
}

func (w *twin) member(worker kv.Worker, pool uint64, known bool) {
	if delete(w.pools, worker); known {
		w.pools[worker] = pool
	}
}

func (w *twin) has(worker kv.Worker, h kv.SequenceHash, t kv.Tier) bool {
	if w.held[kv.WorkerOwner(worker)][pair{h, t}] {
		return true
	}
	pool := w.pools[worker]
	return pool != 0 && t != kv.TierDevice && w.held[kv.PoolOwner(pool)][pair{h, t}]
}

// match is what each worker with a hit has of a prompt.
func (w *twin) match(locals []kv.LocalHash, r index.Reading) map[kv.Worker]index.Hits {
	seq := kv.AppendSequence(nil, locals)
	out := make(map[kv.Worker]index.Hits)
	for worker := range w.pools {
		hits := w.continuation(worker, seq)
		if r == index.Union {
			hits = w.union(worker, seq)
		}
		if hits.Total() > 0 {
			out[worker] = hits
		}
	}
	return out
}

func (w *twin) continuation(worker kv.Worker, seq []kv.SequenceHash) (hits index.Hits) {
	pos := 0
	for _, t := range kv.Tiers {
		for ; pos < len(seq) && w.has(worker, seq[pos], t); pos++ {
			hits[t]++
		}
	}
	return hits
}

func (w *twin) union(worker kv.Worker, seq []kv.SequenceHash) (hits index.Hits) {
	for _, h := range seq {
		best := slices.IndexFunc(kv.Tiers[:], func(t kv.Tier) bool { return w.has(worker, h, t) })
		if best < 0 {
			break
		}
		hits[kv.Tiers[best]]++
	}
	return hits
}

func (w *twin) digest(o kv.Owner) (sum, pairs uint64) {
	for p := range w.held[o] {
		sum += kv.Digest(p.hash, p.tier)
		pairs++
	}
	return sum, pairs
}

// dump is everything that is held, each block with its place.
func (w *twin) dump() map[dumped]bool {
	out := make(map[dumped]bool)
	for o, set := range w.held {
		for p := range set {
			out[dumped{o, p, w.tree[p.hash]}] = true
		}
	}
	return out
}

// dumped is one block of a dump.
type dumped struct {
	owner kv.Owner
	pair  pair
	place place
}

// failer is what testing and rapid have in common.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// dumpOf is an index's dump, block by block, and its events.
func dumpOf(t failer, x *index.Index) (map[dumped]bool, []kvevent.RouterEvent) {
	t.Helper()
	return shownBy(t, func(visit func(e *kvevent.RouterEvent) bool) { index.DumpAll(x, visit) })
}

// shownBy is what Dump or Walk of an index shows, block by block, and the events. A
// block that comes before its parent of the same owner and tier fails the test.
func shownBy(t failer, show func(func(*kvevent.RouterEvent) bool)) (map[dumped]bool, []kvevent.RouterEvent) {
	t.Helper()
	out := make(map[dumped]bool)
	var events []kvevent.RouterEvent
	show(func(e *kvevent.RouterEvent) bool {
		kept := *e
		kept.Blocks = slices.Clone(e.Blocks)
		events = append(events, kept)
		above := place{parent: e.Parent, hasParent: e.HasParent}
		for _, b := range e.Blocks {
			above.local = b.Local
			d := dumped{e.Owner, pair{b.Hash, e.Tier}, above}
			if out[d] {
				t.Fatalf("%s of %s in tier %s is in the dump twice", hashText(b.Hash), e.Owner, e.Tier)
			}
			out[d] = true
			above = place{parent: b.Hash, hasParent: true}
		}
		return true
	})
	seen := make(map[dumped]bool)
	for i := range events {
		e := &events[i]
		if e.Kind != kvevent.Stored || len(e.Blocks) == 0 {
			t.Fatalf("event %d of the dump is %s of %d blocks", i, e.Kind, len(e.Blocks))
		}
		key := dumped{owner: e.Owner, pair: pair{e.Parent, e.Tier}}
		if e.HasParent && !seen[key] && slices.ContainsFunc(events[i:], func(later kvevent.RouterEvent) bool {
			return later.Owner == e.Owner && later.Tier == e.Tier &&
				slices.ContainsFunc(later.Blocks, func(b kvevent.StoredBlock) bool { return b.Hash == e.Parent })
		}) {
			t.Fatalf("event %d of the dump comes before its parent %s", i, hashText(e.Parent))
		}
		for _, b := range e.Blocks {
			seen[dumped{owner: e.Owner, pair: pair{b.Hash, e.Tier}}] = true
		}
	}
	return out, events
}

func hashText(h kv.SequenceHash) string { return fmt.Sprintf("%016x", uint64(h)) }

// workerHits is a match by worker. An answer that is out of order, has a worker
// twice or one without hits fails the test.
func workerHits(t failer, m *index.Matches) map[kv.Worker]index.Hits {
	t.Helper()
	if !slices.IsSortedFunc(m.Hits, func(a, b index.Hit) int { return cmp.Compare(a.Member, b.Member) }) {
		t.Fatalf("hits are not in order: %v", m.Hits)
	}
	out := make(map[kv.Worker]index.Hits)
	for _, h := range m.Hits {
		if int(h.Member) >= len(m.Members.List) || h.Member < 0 {
			t.Fatalf("member %d of %d", h.Member, len(m.Members.List))
		}
		w := m.Members.List[h.Member].Worker
		if _, ok := out[w]; ok || h.Hits.Total() == 0 {
			t.Fatalf("worker %s is in it twice or for nothing: %v", w, m.Hits)
		}
		out[w] = h.Hits
	}
	return out
}

// hitsOf is what a worker has in an answer.
func hitsOf(m *index.Matches, w kv.Worker) index.Hits {
	for _, h := range m.Hits {
		if m.Members.List[h.Member].Worker == w {
			return h.Hits
		}
	}
	return index.Hits{}
}

// match is an index's answer by worker.
func match(t failer, x *index.Index, locals []kv.LocalHash, r index.Reading) map[kv.Worker]index.Hits {
	t.Helper()
	var m index.Matches
	x.Match(&m, locals, r)
	return workerHits(t, &m)
}

// stored stores blocks from..to of a prompt.
func stored(o kv.Owner, t kv.Tier, prompt []kv.LocalHash, from, to int) kvevent.RouterEvent {
	seq := kv.AppendSequence(nil, prompt[:to])
	e := kvevent.RouterEvent{Owner: o, Tier: t, Kind: kvevent.Stored}
	if from > 0 {
		e.Parent, e.HasParent = seq[from-1], true
	}
	for i := from; i < to; i++ {
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: seq[i], Local: prompt[i]})
	}
	return e
}

// removed removes blocks from..to of a prompt, the last one first.
func removed(o kv.Owner, t kv.Tier, prompt []kv.LocalHash, from, to int) kvevent.RouterEvent {
	seq := kv.AppendSequence(nil, prompt[:to])[from:]
	slices.Reverse(seq)
	return kvevent.RouterEvent{Owner: o, Tier: t, Kind: kvevent.Removed, Removed: seq}
}

func cleared(o kv.Owner) kvevent.RouterEvent {
	return kvevent.RouterEvent{Owner: o, Kind: kvevent.Cleared}
}

func newIndex(t testing.TB, o index.Options) *index.Index {
	t.Helper()
	x, err := index.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func apply(t testing.TB, x *index.Index, events ...kvevent.RouterEvent) {
	t.Helper()
	if _, err := x.ApplyAll(events); err != nil {
		t.Fatal(err)
	}
}

// join makes workers known that have no pool.
func join(t testing.TB, x *index.Index, workers ...kv.Worker) {
	t.Helper()
	for _, w := range workers {
		if err := x.SetMember(w, 0, true); err != nil {
			t.Fatal(err)
		}
	}
}

func locals(values ...uint64) []kv.LocalHash {
	out := make([]kv.LocalHash, len(values))
	for i, v := range values {
		out[i] = kv.LocalHash(v)
	}
	return out
}

// series is n blocks that start with first.
func series(first, n int) []kv.LocalHash {
	out := make([]kv.LocalHash, n)
	for i := range out {
		out[i] = kv.LocalHash(first + i)
	}
	return out
}

func worker(id, rank int) kv.Worker { return kv.Worker{ID: kv.WorkerID(id), Rank: kv.DPRank(rank)} }

func device(n uint32) index.Hits { return index.Hits{kv.TierDevice: n} }
