package index

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

const hybridPage = 4

// hybridWorld is an index of one hybrid model, and a naive twin of what its owners hold.
type hybridWorld struct {
	x      *Index
	groups kvgroup.Groups
	prompt []kv.LocalHash
	names  []kv.SequenceHash
	twin   map[hybridPair]bool
}

// hybridPair says that an owner holds the block of a group that ends with a block of the prompt.
type hybridPair struct {
	who   kv.Owner
	tier  kv.Tier
	group uint32
	at    int
}

var (
	hybridWorker = kv.Worker{ID: 1}
	hybridOwners = []kv.Owner{kv.WorkerOwner(hybridWorker), kv.PoolOwner(5)}
)

func newHybridWorld(rt *rapid.T) *hybridWorld {
	x, err := New(Options{MaxBytes: 1 << 20})
	if err != nil {
		rt.Fatal(err)
	}
	w := &hybridWorld{x: x, twin: make(map[hybridPair]bool)}
	w.groups = kvgroup.Groups{{Kind: kvgroup.Full, BlockSize: hybridPage}}
	for i := range rapid.IntRange(1, 3).Draw(rt, "groups") {
		g := kvgroup.Group{BlockSize: hybridPage * rapid.Uint32Range(1, 2).Draw(rt, "block size")}
		switch g.Kind = rapid.SampledFrom([]kvgroup.Kind{kvgroup.Full, kvgroup.Sliding, kvgroup.Sliding, kvgroup.Chunked, kvgroup.State}).Draw(rt, "kind"); g.Kind {
		case kvgroup.Sliding:
			g.Window = rapid.Uint32Range(1, 20).Draw(rt, "window")
		case kvgroup.Chunked:
			g.Window = g.BlockSize * rapid.Uint32Range(1, 3).Draw(rt, "chunk")
		}
		if i == 0 && g.Kind == kvgroup.Sliding {
			g.Eagle = rapid.Bool().Draw(rt, "eagle")
		}
		w.groups = append(w.groups, g)
	}
	w.prompt = chain(3, 8)
	w.names = kv.AppendSequence(nil, w.prompt)
	w.join(rt)
	return w
}

func (w *hybridWorld) join(rt *rapid.T) {
	w.x.SetGroups(hybridWorker, w.groups, hybridPage)
	if err := w.x.SetMember(hybridWorker, 5, true); err != nil {
		rt.Fatal(err)
	}
}

// chain returns n different local hashes.
func chain(seed, n int) (locals []kv.LocalHash) {
	for i := range n {
		locals = append(locals, kv.LocalHash(kv.Digest(kv.SequenceHash(seed*1000+i), kv.TierDevice)))
	}
	return locals
}

func (w *hybridWorld) draw(rt *rapid.T) hybridPair {
	return hybridPair{
		rapid.SampledFrom(hybridOwners).Draw(rt, "owner"), rapid.SampledFrom(kv.Tiers[1:3]).Draw(rt, "tier"),
		rapid.Uint32Range(0, uint32(len(w.groups)-1)).Draw(rt, "group"), rapid.IntRange(0, len(w.prompt)-1).Draw(rt, "at"),
	}
}

// event returns the event that stores the pair.
func (w *hybridWorld) event(k hybridPair) *kvevent.RouterEvent {
	e := &kvevent.RouterEvent{Owner: k.who, Tier: k.tier, Kind: kvevent.Stored, Group: k.group}
	b := kvevent.StoredBlock{Hash: w.names[k.at]}
	if k.group == 0 {
		b.Local = w.prompt[k.at]
		if k.at > 0 {
			e.Parent, e.HasParent = w.names[k.at-1], true
		}
	}
	e.Blocks = []kvevent.StoredBlock{b}
	return e
}

func (w *hybridWorld) apply(rt *rapid.T, e *kvevent.RouterEvent) {
	if err := w.x.Apply(e); err != nil {
		rt.Fatal(err)
	}
}

// has reports whether an owner holds a block in any tier.
func (w *hybridWorld) has(who kv.Owner, group int, at uint32) bool {
	for _, tier := range kv.Tiers {
		if w.twin[hybridPair{who, tier, uint32(group), int(at)}] {
			return true
		}
	}
	return false
}

// longest tries every prefix, the longest first, that one owner holds alone.
func (w *hybridWorld) longest(who kv.Owner, tokens uint32) uint32 {
	for t := tokens; t > 0; t-- {
		fits := t%w.groups.Align() == 0
		for i, g := range w.groups {
			if !fits {
				break
			}
			first, end := g.Needs(t)
			for b := first; b < end; b++ {
				fits = fits && w.has(who, i, g.ChainBlock(b, hybridPage))
			}
		}
		if fits {
			return t
		}
	}
	return 0
}

// check compares credit, digests and dump with the twin.
func (w *hybridWorld) check(rt *rapid.T) {
	m := Matches{MaxTokens: rapid.IntRange(0, hybridPage*len(w.prompt)).Draw(rt, "max tokens")}
	w.x.Match(&m, w.prompt, Union)
	limit := uint32(hybridPage * len(w.prompt))
	if m.MaxTokens > 0 {
		limit = uint32(m.MaxTokens)
	}
	credit := uint32(0)
	if len(m.Hits) > 0 {
		credit = m.Hits[0].Hits.Total() * hybridPage
	}
	own, pool := w.longest(hybridOwners[0], limit), w.longest(hybridOwners[1], limit)
	if want := max(own, pool); credit != want {
		rt.Fatalf("groups %+v, limit %d: credit %d tokens, want %d", w.groups, limit, credit, want)
	}
	// The other reading counts the worker's device alone as its own, and the same prefix of the pool.
	w.x.Match(&m, w.prompt, Continuation)
	if pool > own && (len(m.Hits) != 1 || m.Hits[0].Hits.Total()*hybridPage != pool) {
		rt.Fatalf("groups %+v, limit %d: hits %+v, want %d tokens of the pool", w.groups, limit, m.Hits, pool)
	}
	for _, who := range hybridOwners {
		var sum, pairs, groupSum, groupPairs uint64
		for k := range w.twin {
			switch d := kv.Digest(kv.InGroup(w.names[k.at], k.group), k.tier); {
			case k.who != who:
			case k.group == 0:
				sum, pairs = sum+d, pairs+1
			default:
				groupSum, groupPairs = groupSum+d, groupPairs+1
			}
		}
		gotSum, gotPairs := w.x.Digest(who)
		gotGroupSum, gotGroupPairs := w.x.GroupDigest(who)
		if gotSum != sum || gotPairs != pairs || gotGroupSum != groupSum || gotGroupPairs != groupPairs {
			rt.Fatalf("%s: digests %x of %d, %x of %d; want %x of %d, %x of %d", who,
				gotSum, gotPairs, gotGroupSum, gotGroupPairs, sum, pairs, groupSum, groupPairs)
		}
	}
}

// dump returns the events of an owner.
func (w *hybridWorld) dump(who kv.Owner) (events []kvevent.RouterEvent) {
	w.x.DumpOwner(who, func(e *kvevent.RouterEvent) bool {
		copied := *e
		copied.Blocks = append([]kvevent.StoredBlock(nil), e.Blocks...)
		events = append(events, copied)
		return true
	})
	return events
}

// TestCreditIsTheLongestPrefixThatAllGroupsServe drives an index with the blocks of a hybrid model,
// and compares the credit of a worker with its pool with a search over all prefixes.
func TestCreditIsTheLongestPrefixThatAllGroupsServe(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newHybridWorld(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"store": func(rt *rapid.T) {
				k := w.draw(rt)
				w.twin[k] = true
				w.apply(rt, w.event(k))
			},
			"store a prefix": func(rt *rapid.T) {
				k := w.draw(rt)
				for at := range k.at + 1 {
					k.at = at
					w.twin[k] = true
					w.apply(rt, w.event(k))
				}
			},
			"remove": func(rt *rapid.T) {
				k := w.draw(rt)
				delete(w.twin, k)
				w.apply(rt, &kvevent.RouterEvent{Owner: k.who, Tier: k.tier, Kind: kvevent.Removed, Group: k.group, Removed: []kv.SequenceHash{w.names[k.at]}})
			},
			"clear": func(rt *rapid.T) {
				if rapid.IntRange(0, 4).Draw(rt, "really") > 0 {
					return
				}
				who := rapid.SampledFrom(hybridOwners).Draw(rt, "owner")
				for k := range w.twin {
					if k.who == who {
						delete(w.twin, k)
					}
				}
				if rapid.Bool().Draw(rt, "event") {
					w.apply(rt, &kvevent.RouterEvent{Owner: who, Kind: kvevent.Cleared})
				} else {
					w.x.RemoveOwner(who)
				}
			},
			"sweep": func(*rapid.T) {
				for w.x.Sweep(64) {
				}
			},
			"replace": func(rt *rapid.T) {
				who := rapid.SampledFrom(hybridOwners).Draw(rt, "owner")
				if err := w.x.Replace(who, w.dump(who)); err != nil {
					rt.Fatal(err)
				}
			},
			"leave and join": func(rt *rapid.T) {
				if err := w.x.SetMember(hybridWorker, 0, false); err != nil {
					rt.Fatal(err)
				}
				w.join(rt)
			},
			"": w.check,
		})
	})
}

// TestSparseBlocksWithoutRoomAreLost: the table of sparse blocks stays within the budget, and a
// digest still tells whether an event was missed.
func TestSparseBlocksWithoutRoomAreLost(t *testing.T) {
	x, err := New(Options{MaxBytes: minBytes})
	if err != nil {
		t.Fatal(err)
	}
	who := hybridOwners[1]
	const n = 20_000
	hash := func(i int) kv.SequenceHash { return kv.SequenceHash(kv.Digest(kv.SequenceHash(i), kv.TierHost)) }
	apply := func(e kvevent.RouterEvent) {
		t.Helper()
		e.Owner, e.Tier, e.Group = who, kv.TierHost, 1
		if err := x.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	var want uint64
	for i := range n {
		apply(kvevent.RouterEvent{Kind: kvevent.Stored, Blocks: []kvevent.StoredBlock{{Hash: hash(i)}}})
		want += kv.Digest(kv.InGroup(hash(i), 1), kv.TierHost)
	}
	sum, pairs := x.GroupDigest(who)
	if lost := x.Lost(who); sum != want || pairs != n || lost == 0 || lost == n {
		t.Errorf("digest %x of %d pairs, %d lost; want %x of %d and some lost", sum, pairs, lost, want, n)
	}
	if s := x.Stats(); s.Bytes > minBytes || s.SparsePairs == 0 {
		t.Errorf("%d bytes, limit %d; %d pairs", s.Bytes, minBytes, s.SparsePairs)
	}
	for i := range n {
		apply(kvevent.RouterEvent{Kind: kvevent.Removed, Removed: []kv.SequenceHash{hash(i)}})
	}
	if sum, pairs := x.GroupDigest(who); sum != 0 || pairs != 0 || x.Lost(who) != 0 {
		t.Errorf("everything was removed: digest %x of %d pairs, %d lost", sum, pairs, x.Lost(who))
	}
}
