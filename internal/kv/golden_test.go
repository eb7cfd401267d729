package kv_test

import (
	"math"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// The numbers in this file are NVIDIA Dynamo's: its own tests and its runtime
// give the same. A router that mixes our events with Dynamo's needs them equal.

// upTo is the tokens 0, 1 … n-1.
func upTo(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	return tokens
}

func TestLocalHashEqualsDynamos(t *testing.T) {
	var h kv.Hasher
	for _, tc := range []struct {
		tokens []uint32
		want   kv.LocalHash
	}{
		{[]uint32{1, 2, 3, 4}, 14643705804678351452},
		{[]uint32{5, 6, 7, 8}, 16777012769546811212},
		{[]uint32{9, 10, 11, 12}, 483935686894639516},
		{[]uint32{0, 1, 2, 3}, 9143094415614847814},
		{[]uint32{10, 20, 30, 40}, 16324159493528209483},
		{[]uint32{50, 60, 70, 80}, 6032772817189548200},
		{upTo(16), 15310707395893867146},
		{upTo(32), 5756925433886871916},
		{upTo(64), 3480597578098033343},
		{nil, 15128690059815094969},
	} {
		if got := h.Local(tc.tokens, kv.HashSeed, nil); got != tc.want {
			t.Errorf("%v: got %d, want %d", tc.tokens, got, tc.want)
		}
	}
	if got := xxh3.HashStringSeed("test data", kv.HashSeed); got != 13226331709069118873 {
		t.Errorf(`XXH3("test data", 1337): got %d`, got)
	}
}

func TestSequenceHashEqualsDynamos(t *testing.T) {
	var h kv.Hasher
	for _, tc := range []struct {
		tokens []uint32
		want   []kv.SequenceHash
	}{
		{
			[]uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
			[]kv.SequenceHash{14643705804678351452, 4945711292740353085, 12583592247330656132},
		},
		{[]uint32{10, 20, 30, 40, 50, 60, 70, 80}, []kv.SequenceHash{16324159493528209483, 16848833586163979841}},
	} {
		locals := h.AppendLocals(nil, tc.tokens, 4, kv.HashSeed)
		if got := kv.AppendSequence(nil, locals); !slices.Equal(got, tc.want) {
			t.Errorf("%v: got %d, want %d", tc.tokens, got, tc.want)
		}
	}
	// A long chain of blocks of one token each.
	chain := kv.AppendSequence(nil, h.AppendLocals(nil, upTo(257), 1, kv.HashSeed))
	for position, want := range map[int]kv.SequenceHash{
		254: 17775296809676698669, 255: 8331041185603391247, 256: 17948278676955203779,
	} {
		if chain[position] != want {
			t.Errorf("position %d: got %d, want %d", position, chain[position], want)
		}
	}
}

func TestLoRAAndSaltMoveTheSeedAsDynamosDo(t *testing.T) {
	var h kv.Hasher
	for _, tc := range []struct {
		lora, salt string
		seed       uint64
		locals     []kv.LocalHash // of the tokens 0 1 2 3 and 1 2 3 4
	}{
		{"", "", kv.HashSeed, []kv.LocalHash{9143094415614847814, 14643705804678351452}},
		{"adapter-a", "", 8842669519798868182, []kv.LocalHash{6665157333201000639, 11381080598872079209}},
		{"adapter-b", "", 6456551074960804278, []kv.LocalHash{10757640529385508180, 5900721782713956865}},
		{"alpha-7b", "", 723495307357893745, []kv.LocalHash{12932461803651752120, 16548428770143335509}},
		{"my-adapter", "", 2360313164392603308, []kv.LocalHash{13692202469334984872, 15633847640104431966}},
		{"", "tenant-a", 1948188790972764086, []kv.LocalHash{17009624042690211646}},
		{"", "tenant-b", 16551476241218314299, []kv.LocalHash{370894731093104760}},
		{"adapter-a", "tenant-a", 10790858310771630931, []kv.LocalHash{8269515957840517240}},
	} {
		seed := kv.LocalSeed(tc.lora, tc.salt)
		if seed != tc.seed {
			t.Errorf("LoRA %q, salt %q: seed %d, want %d", tc.lora, tc.salt, seed, tc.seed)
		}
		for i, want := range tc.locals {
			tokens := []uint32{0, 1, 2, 3}
			if i == 1 {
				tokens = []uint32{1, 2, 3, 4}
			}
			if got := h.Local(tokens, seed, nil); got != want {
				t.Errorf("LoRA %q, salt %q, tokens %v: got %d, want %d", tc.lora, tc.salt, tokens, got, want)
			}
		}
	}
	if kv.LocalSeed("x", "") == kv.LocalSeed("", "x") {
		t.Error("a LoRA and a salt of the same name give the same seed")
	}
}

func TestEagleWindowsOverlapByOneToken(t *testing.T) {
	var h kv.Hasher
	full := []kv.LocalHash{11646242937812223497, 9948816348502404300}
	for i, want := range full {
		if got := h.Local(kv.BlockTokens(upTo(5), i, 2, true), kv.HashSeed, nil); got != want {
			t.Errorf("block %d: got %d, want %d", i, got, want)
		}
		if got := kv.BlockTokens(upTo(4), i, 2, false); !slices.Equal(got, upTo(4)[2*i:2*i+2]) {
			t.Errorf("block %d without pairs: tokens %d", i, got)
		}
	}
}

func TestMultimodalObjectsAreHashedAfterTheTokensInOrderOfTheirHash(t *testing.T) {
	var h kv.Hasher
	if got := h.Local([]uint32{0, 1}, kv.HashSeed, []uint64{42}); got != 6100948656312251355 {
		t.Errorf("tokens 0 1 with object 42: got %d", got)
	}
	if got := h.Local([]uint32{2, 3}, kv.HashSeed, nil); got != 10731123482949079648 {
		t.Errorf("tokens 2 3: got %d", got)
	}
	objects := []uint64{9, 3, 7}
	want := h.Local(upTo(4), kv.HashSeed, []uint64{3, 7, 9})
	if got := h.Local(upTo(4), kv.HashSeed, objects); got != want {
		t.Errorf("another order of objects: got %d, want %d", got, want)
	}
	if !slices.Equal(objects, []uint64{9, 3, 7}) {
		t.Errorf("the caller's objects were reordered: %v", objects)
	}
}

func TestOnlyFullBlocksAreHashed(t *testing.T) {
	var h kv.Hasher
	kept := []kv.LocalHash{1}
	for n, blocks := range map[int]int{0: 0, 3: 0, 4: 1, 7: 1, 8: 2} {
		got := h.AppendLocals(kept, upTo(n), 4, kv.HashSeed)
		if len(got) != 1+blocks || got[0] != 1 {
			t.Errorf("%d tokens: got %d, want %d more", n, got, blocks)
		}
	}
	for _, size := range []int{0, -1, math.MinInt} {
		if got := h.AppendLocals(kept, upTo(8), size, 0); len(got) != 1 {
			t.Errorf("block size %d: got %d", size, got)
		}
	}
}

func TestDigestTellsBlocksAndTiersApartAndDoesNotDependOnOrder(t *testing.T) {
	seen := map[uint64]bool{}
	var forward, backward uint64
	const n = 1000
	for h := range n {
		for _, tier := range kv.Tiers {
			d := kv.Digest(kv.SequenceHash(h), tier)
			if seen[d] {
				t.Fatalf("hash %d in tier %s: digest %d is not its own", h, tier, d)
			}
			seen[d] = true
			forward += d
			backward += kv.Digest(kv.SequenceHash(n-1-h), kv.TierExternal-tier)
		}
	}
	if forward != backward {
		t.Errorf("sums differ: %d and %d", forward, backward)
	}
	// Two sides compare digests over the wire, so the mix is frozen. These were
	// computed with arbitrary-precision integers.
	for _, tc := range []struct {
		hash kv.SequenceHash
		tier kv.Tier
		want uint64
	}{
		{0, kv.TierDevice, 16294208416658607535},
		{1, kv.TierHost, 13757245211066428519},
		{14643705804678351452, kv.TierDisk, 5707974996221480465},
		{math.MaxUint64, kv.TierExternal, 7862637804313477842},
	} {
		if got := kv.Digest(tc.hash, tc.tier); got != tc.want {
			t.Errorf("hash %d in tier %s: got %d, want %d", tc.hash, tc.tier, got, tc.want)
		}
	}
}
