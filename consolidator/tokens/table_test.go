package tokens

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

var plain = Identity{BlockSize: 4}

// tokensOf are n tokens that belong to block h.
func tokensOf(h kv.SequenceHash, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(h)*1000 + uint32(i)
	}
	return tokens
}

func TestTableDescribesBlocksOfEveryKind(t *testing.T) {
	table := New(0)
	cases := map[kv.SequenceHash]engineevent.Event{
		1: {Tokens: tokensOf(1, 4), BlockSize: 4},
		2: {Tokens: tokensOf(2, 16), BlockSize: 16, LoRAName: "a", Salt: "s"},
		3: {Tokens: tokensOf(3, 17), BlockSize: 16, Eagle: true},
		4: {Tokens: tokensOf(4, 100), BlockSize: 100, Multimodal: [][]uint64{{1<<63 | 5, 6, 7}}},
		5: {Tokens: tokensOf(5, 15), BlockSize: 15, Multimodal: [][]uint64{{1<<40 | 2}}}, // crosses a cell
	}
	for h, want := range cases {
		id := Identity{LoRAName: want.LoRAName, Salt: want.Salt, BlockSize: want.BlockSize}
		if want.Multimodal != nil {
			id.Objects = want.Multimodal[0]
		}
		table.BlockTokens(h, want.Tokens, id)
	}
	var got engineevent.Event
	for h, want := range cases {
		if !table.Describe(h, &got) {
			t.Errorf("block %d is not known", h)
		}
		if !slices.Equal(got.Tokens, want.Tokens) || got.BlockSize != want.BlockSize || got.LoRAName != want.LoRAName ||
			got.Salt != want.Salt || got.Eagle != want.Eagle || !slices.EqualFunc(got.Multimodal, want.Multimodal, slices.Equal) {
			t.Errorf("block %d is %+v, want %+v", h, got, want)
		}
	}
	if table.Describe(9, &got) || table.Stats().Misses != 1 {
		t.Error("a block that was never seen is known, or its absence not counted")
	}
}

func TestOldestUnretainedTokensMakeRoom(t *testing.T) {
	cost := entryBytes + cellBytes
	table := New(nameBytes + 3*cost)
	var e engineevent.Event
	for h := kv.SequenceHash(1); h <= 3; h++ {
		table.BlockTokens(h, tokensOf(h, 4), plain)
	}
	table.Retain(1)
	table.BlockTokens(2, tokensOf(2, 4), plain) // seen again: younger than 3
	table.BlockTokens(4, tokensOf(4, 4), plain)
	for h, want := range map[kv.SequenceHash]bool{1: true, 2: true, 3: false, 4: true} {
		if table.Describe(h, &e) != want {
			t.Errorf("block %d is known: %v, want %v", h, !want, want)
		}
	}
	table.Retain(2)
	table.Retain(4)
	table.BlockTokens(5, tokensOf(5, 4), plain)
	if s := table.Stats(); s.Refused != 1 || s.Evicted != 1 || s.Blocks != 3 {
		t.Errorf("with everything retained: %+v", s)
	}
	table.Release(1)
	table.BlockTokens(5, tokensOf(5, 4), plain)
	if !table.Describe(5, &e) || table.Describe(1, &e) {
		t.Error("what was released did not make room")
	}
}

// The tokens of a block of the pool may come in after the block did.
func TestTokensThatComeAfterTheirRetainAreKept(t *testing.T) {
	table := New(nameBytes + entryBytes + cellBytes)
	table.Retain(7)
	table.BlockTokens(7, tokensOf(7, 4), plain)
	table.BlockTokens(8, tokensOf(8, 4), plain)
	var e engineevent.Event
	if !table.Describe(7, &e) || table.Describe(8, &e) {
		t.Error("the retained block gave way")
	}
	table.Release(7)
	table.Retain(9)
	table.Release(9)
	if s := table.Stats(); s.Retained != 0 || s.Blocks > 1 {
		t.Errorf("left behind: %+v", s)
	}
}

// A warm pool joins with many blocks and no tokens; those of a new block still fit.
func TestBlocksWithoutTokensTakeNoRoomFromOthers(t *testing.T) {
	table := New(nameBytes + entryBytes + cellBytes)
	table.maxWithoutTokens = 1000
	for h := range kv.SequenceHash(1200) {
		table.Retain(h)
	}
	table.BlockTokens(5000, tokensOf(5000, 4), plain)
	var e engineevent.Event
	if s := table.Stats(); !table.Describe(5000, &e) || s.Refused != 200 || s.Blocks != 1001 {
		t.Errorf("a block cannot be described: %+v", s)
	}
	for h := range kv.SequenceHash(1200) {
		table.Release(h)
	}
	if s := table.Stats(); s.Retained != 0 || s.Blocks != 1 || table.withoutTokens != 0 || table.ignoredRetains != 0 {
		t.Errorf("left behind: %+v", s)
	}
}

func TestTokensThatCannotBeKeptAreRefused(t *testing.T) {
	table := New(0)
	table.BlockTokens(1, nil, plain)
	table.BlockTokens(2, make([]uint32, maxBlockWords), plain)
	if s := table.Stats(); s.Refused != 2 || s.Blocks != 0 || s.Bytes != 0 {
		t.Errorf("counted %+v", s)
	}
}

// TestTableKeepsItsBounds compares the table with a map and a count of bytes: it
// never has more than it may, what it has is right, and what is retained stays.
func TestTableKeepsItsBounds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.IntRange(200, 3000).Draw(rt, "limit")
		table := New(limit)
		seen := make(map[kv.SequenceHash]int) // tokens of each block
		refs := make(map[kv.SequenceHash]int)
		kept := make(map[kv.SequenceHash]bool) // known while retained
		var e engineevent.Event
		drawBlock := func(rt *rapid.T) kv.SequenceHash { return kv.SequenceHash(rapid.IntRange(1, 30).Draw(rt, "block")) }
		rt.Repeat(map[string]func(*rapid.T){
			"tokens": func(rt *rapid.T) {
				h := drawBlock(rt)
				if seen[h] == 0 {
					seen[h] = rapid.IntRange(1, 50).Draw(rt, "tokens")
				}
				id := Identity{BlockSize: uint32(seen[h]), Salt: rapid.SampledFrom([]string{"", "x", "y"}).Draw(rt, "salt")}
				table.BlockTokens(h, tokensOf(h, seen[h]), id)
			},
			"retain": func(rt *rapid.T) {
				h := drawBlock(rt)
				table.Retain(h)
				refs[h]++
			},
			"release": func(rt *rapid.T) {
				if h := drawBlock(rt); refs[h] > 0 {
					table.Release(h)
					if refs[h]--; refs[h] == 0 {
						delete(refs, h)
						delete(kept, h)
					}
				}
			},
			"": func(rt *rapid.T) {
				s := table.Stats()
				if int(s.Retained) != len(refs) {
					rt.Fatalf("%d retained, want %d", s.Retained, len(refs))
				}
				if int(s.Bytes) > limit && int(s.Blocks) > len(refs) {
					rt.Fatalf("%d bytes, limit %d, with %d blocks that may go", s.Bytes, limit, int(s.Blocks)-len(refs))
				}
				for h, n := range seen {
					known := table.Describe(h, &e)
					if known && !slices.Equal(e.Tokens, tokensOf(h, n)) {
						rt.Fatalf("block %d: tokens %v", h, e.Tokens)
					}
					if !known && kept[h] {
						rt.Fatalf("block %d is retained and gone", h)
					}
					if known && refs[h] > 0 {
						kept[h] = true
					}
				}
			},
		})
		for h, n := range refs {
			for range n {
				table.Release(h)
			}
		}
		table.shrinkLocked(limit)
		if s := table.Stats(); s.Bytes != 0 || s.Blocks != 0 || len(table.names.index) != 0 {
			rt.Fatalf("emptied, and %+v with %d names is left", s, len(table.names.index))
		}
	})
}

func TestTableAllocatesNothingPerBlockInSteadyState(t *testing.T) {
	table := New(64 << 10)
	tokens := tokensOf(1, 16)
	next := kv.SequenceHash(1)
	var e engineevent.Event
	turn := func() {
		for range 100 {
			table.BlockTokens(next, tokens, Identity{BlockSize: 16})
			table.Describe(next, &e)
			next++
		}
	}
	for range 100 {
		turn()
	}
	if n := testing.AllocsPerRun(50, turn); n > 1 {
		t.Errorf("%v allocations per 100 blocks", n)
	}
}
