package dynamo

import (
	"cmp"
	"maps"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// pair is a block in a tier.
type pair struct {
	seq  kv.SequenceHash
	tier kv.Tier
}

// held is a set of pairs, kept by applying changes one at a time.
type held map[pair]bool

func (h held) apply(events []kvevent.RouterEvent) {
	for _, e := range events {
		switch e.Kind {
		case kvevent.Stored:
			for _, b := range e.Blocks {
				h[pair{b.Hash, e.Tier}] = true
			}
		case kvevent.Removed:
			for _, s := range e.Removed {
				delete(h, pair{s, e.Tier})
			}
		case kvevent.Cleared:
			clear(h)
		}
	}
}

func (h held) digest() (sum uint64) {
	for p := range h {
		sum += kv.Digest(p.seq, p.tier)
	}
	return sum
}

// block is a block of a fakeWorker: its engine's name, its content, and where it
// lies.
type block struct {
	name, parent kv.SequenceHash // external hashes; parent 0 is none
	local        kv.LocalHash
	seq          kv.SequenceHash
	depth        uint32
	tiers        kv.TierMask
}

// fakeWorker is a rank of a worker of Dynamo with its publisher: it numbers its
// events from 1, remembers the last ring of them, and answers queries as
// Dynamo's publishers do.
type fakeWorker struct {
	worker kv.Worker
	ring   int
	events []kvevent.RouterEvent
	blocks map[kv.SequenceHash]*block // by name
}

func newFakeWorker(w kv.Worker, ring int) *fakeWorker {
	return &fakeWorker{worker: w, ring: ring, blocks: make(map[kv.SequenceHash]*block)}
}

func (w *fakeWorker) last() uint64 { return uint64(len(w.events)) }

func (w *fakeWorker) emit(e kvevent.RouterEvent) kvevent.RouterEvent {
	e.Owner, e.ID = kv.WorkerOwner(w.worker), w.last()+1
	w.events = append(w.events, e)
	return e
}

// store puts a chain of new or known blocks, named from name on, below parent.
func (w *fakeWorker) store(tier kv.Tier, parent, name kv.SequenceHash, locals ...kv.LocalHash) kvevent.RouterEvent {
	names := make([]kv.SequenceHash, len(locals))
	for i := range names {
		names[i] = name + kv.SequenceHash(i)
	}
	return w.storeNamed(tier, parent, names, locals)
}

func (w *fakeWorker) storeNamed(tier kv.Tier, parent kv.SequenceHash, names []kv.SequenceHash, locals []kv.LocalHash) kvevent.RouterEvent {
	e := kvevent.RouterEvent{Kind: kvevent.Stored, Tier: tier, Parent: parent, HasParent: parent != 0}
	for i, l := range locals {
		b := &block{name: names[i], parent: parent, local: l, seq: kv.SequenceHash(l)}
		if above := w.blocks[parent]; above != nil {
			b.seq, b.depth = kv.Chain(above.seq, l), above.depth+1
		}
		if have := w.blocks[b.name]; have != nil {
			b = have
		}
		b.tiers = b.tiers.With(tier)
		w.blocks[b.name] = b
		e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: b.name, Local: l})
		parent = b.name
	}
	return w.emit(e)
}

// remove takes a block out of a tier.
func (w *fakeWorker) remove(tier kv.Tier, name kv.SequenceHash) kvevent.RouterEvent {
	b := w.blocks[name]
	if b.tiers = b.tiers.Without(tier); b.tiers == 0 {
		delete(w.blocks, name)
	}
	return w.emit(kvevent.RouterEvent{Kind: kvevent.Removed, Tier: tier, Removed: []kv.SequenceHash{name}})
}

func (w *fakeWorker) clear() kvevent.RouterEvent {
	clear(w.blocks)
	return w.emit(kvevent.RouterEvent{Kind: kvevent.Cleared})
}

// leaves are the names of the blocks below which there is none, in order.
func (w *fakeWorker) leaves() []kv.SequenceHash {
	above := make(map[kv.SequenceHash]bool)
	for _, b := range w.blocks {
		above[b.parent] = true
	}
	var names []kv.SequenceHash
	for _, name := range slices.Sorted(maps.Keys(w.blocks)) {
		if !above[name] {
			names = append(names, name)
		}
	}
	return names
}

// leavesOn are the leaves in a tier.
func (w *fakeWorker) leavesOn(tier kv.Tier) []kv.SequenceHash {
	return slices.DeleteFunc(w.leaves(), func(n kv.SequenceHash) bool { return !w.blocks[n].tiers.Has(tier) })
}

// truth is what the rank holds.
func (w *fakeWorker) truth() held {
	h := make(held)
	for _, b := range w.blocks {
		for _, tier := range kv.Tiers {
			if b.tiers.Has(tier) {
				h[pair{b.seq, tier}] = true
			}
		}
	}
	return h
}

// answer is the answer of a publisher of Dynamo to q.
func (w *fakeWorker) answer(q *kvevent.DynamoQuery) *kvevent.QueryReply {
	r := &kvevent.QueryReply{LastEventID: w.last()}
	oldest := max(1, len(w.events)-w.ring+1)
	switch {
	case q.Worker != w.worker:
		return &kvevent.QueryReply{Kind: kvevent.QueryError, Message: "wrong worker"}
	case q.HasStart && q.StartID > w.last() && w.last() > 0:
		r.Kind = kvevent.QueryTooNew
	case q.HasStart && q.StartID >= uint64(oldest) && w.last() > 0:
		r.Kind = kvevent.QueryEvents
		r.Events = slices.Clone(w.events[q.StartID-1:])
	default:
		r.Kind = kvevent.QueryTreeDump
		r.Events = w.dump()
	}
	return r
}

func (w *fakeWorker) dump() []kvevent.RouterEvent {
	blocks := slices.SortedFunc(maps.Values(w.blocks), func(a, b *block) int {
		return cmp.Or(cmp.Compare(a.depth, b.depth), cmp.Compare(a.name, b.name))
	})
	var events []kvevent.RouterEvent
	for _, b := range blocks {
		for _, tier := range kv.Tiers {
			if b.tiers.Has(tier) {
				events = append(events, kvevent.RouterEvent{
					Owner: kv.WorkerOwner(w.worker), ID: uint64(len(events)), Kind: kvevent.Stored, Tier: tier,
					Parent: b.parent, HasParent: b.parent != 0, Blocks: []kvevent.StoredBlock{{Hash: b.name, Local: b.local}},
				})
			}
		}
	}
	return events
}
