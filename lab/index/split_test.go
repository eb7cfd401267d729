package index

import (
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/index/loggen"
	"github.com/blockyard-ai/blockyard/lab/index/oplog"
	"github.com/blockyard-ai/blockyard/router/index"
)

// splitter divides blocks among routers by the first blocks of their sequence: see docs/fleet.md. It remembers
// every block that it has seen, because an event names a parent and not the first blocks.
type splitter struct {
	routers, first int
	seen           map[kv.SequenceHash]seenBlock
}

// seenBlock is the number of blocks before a block, and a hash of the sequence's first blocks, at most
// splitter.first of them, up to the block.
type seenBlock struct {
	depth int
	key   uint64
}

// after returns the block with a local hash after b, in a sequence.
func (s *splitter) after(b seenBlock, local kv.LocalHash) seenBlock {
	b.depth++
	if b.depth < s.first {
		b.key = uint64(kv.Chain(kv.SequenceHash(b.key), local))
	}
	return b
}

// router returns the router that keeps b, and -1 when every router keeps b, which has too few blocks before it.
func (s *splitter) router(b seenBlock) int {
	if b.depth < s.first-1 {
		return -1
	}
	return int(b.key % uint64(s.routers))
}

// ask returns the router for a prompt: any for a short one.
func (s *splitter) ask(prompt []kv.LocalHash) int {
	b := seenBlock{depth: -1}
	for _, local := range prompt[:min(s.first, len(prompt))] {
		b = s.after(b, local)
	}
	return max(s.router(b), 0)
}

// split calls apply for each router with its part of event e, if there is any.
func (s *splitter) split(e *kvevent.RouterEvent, apply func(router int, e *kvevent.RouterEvent)) {
	parts := make([]kvevent.RouterEvent, s.routers)
	flush := func(r int) {
		if parts[r].NumBlocks() > 0 {
			apply(r, &parts[r])
		}
		parts[r] = kvevent.RouterEvent{Owner: e.Owner, Tier: e.Tier, ID: e.ID, Kind: e.Kind}
	}
	for r := range parts {
		flush(r)
	}
	each := func(b seenBlock, do func(part *kvevent.RouterEvent)) {
		for r := range parts {
			if to := s.router(b); to < 0 || to == r {
				do(&parts[r])
			}
		}
	}
	for _, h := range e.Removed {
		each(s.seen[h], func(part *kvevent.RouterEvent) { part.Removed = append(part.Removed, h) })
	}
	b, parent, hasParent := seenBlock{depth: -1}, e.Parent, e.HasParent
	if hasParent {
		b = s.seen[parent]
	}
	for _, block := range e.Blocks {
		b = s.after(b, block.Local)
		s.seen[block.Hash] = b
		each(b, func(part *kvevent.RouterEvent) {
			if len(part.Blocks) == 0 {
				part.Parent, part.HasParent = parent, hasParent
			}
			part.Blocks = append(part.Blocks, block)
		})
		parent, hasParent = block.Hash, true
	}
	for r := range parts {
		flush(r)
	}
}

// TestIndexesSplitByFirstBlocksDecideAsOne: routers that each keep the sequences whose first blocks have their hash
// answer every prompt as one index with all blocks does, and each keeps about its share. It logs the shares of
// docs/fleet.md.
func TestIndexesSplitByFirstBlocksDecideAsOne(t *testing.T) {
	const engines, routers = 8, 4
	words, err := loggen.Generate(loggen.Options{Seed: 3, Engines: engines, Pool: 4096, Requests: 1500, MaxPrompt: 1024, Affinity: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	l, err := oplog.Parse(words)
	if err != nil {
		t.Fatal(err)
	}
	for _, first := range []int{1, 32} {
		r := newReplay(l)
		all := make([]*index.Index, routers+1) // the last one has everything
		for i := range all {
			if all[i], err = newIndex(engines); err != nil {
				t.Fatal(err)
			}
		}
		s := &splitter{routers: routers, first: first, seen: make(map[kv.SequenceHash]seenBlock)}
		var want, got index.Matches
		for _, n := range r.order {
			if n < 0 {
				prompt := r.queries[^n]
				all[routers].Match(&want, prompt, index.Continuation)
				all[s.ask(prompt)].Match(&got, prompt, index.Continuation)
				if !slices.Equal(got.Hits, want.Hits) {
					t.Fatalf("first %d blocks: a prompt of %d blocks: %v, want %v", first, len(prompt), got.Hits, want.Hits)
				}
				continue
			}
			if err := all[routers].Apply(&r.events[n]); err != nil {
				t.Fatal(err)
			}
			s.split(&r.events[n], func(router int, e *kvevent.RouterEvent) {
				if err := all[router].Apply(e); err != nil {
					t.Fatal(err)
				}
			})
		}
		whole := all[routers].Stats().Memberships
		sum, most := 0, 0
		for _, x := range all[:routers] {
			x := x.Stats()
			sum, most = sum+x.Memberships, max(most, x.Memberships)
			if x.UnknownRemovals != 0 || x.Parked != 0 {
				t.Errorf("first %d blocks: %+v", first, x)
			}
		}
		t.Logf("first %d blocks: the fullest of %d routers keeps %d %%, all together %d %%", first, routers, 100*most/whole, 100*sum/whole)
		if sum < whole || 2*most > whole { // a fair share is a quarter
			t.Errorf("first %d blocks: %d memberships in all and %d in one router, want at least %d and at most half of it", first, sum, most, whole)
		}
	}
}
