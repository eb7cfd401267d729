package offload

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// masks says for each of n blocks which tiers hold it.
func masks(n int, host, disk []int) []kv.TierMask {
	found := make([]kv.TierMask, n)
	for _, i := range host {
		found[i] = found[i].With(kv.TierHost)
	}
	for _, i := range disk {
		found[i] = found[i].With(kv.TierDisk)
	}
	return found
}

// The tokens that KVBM loads, and ours for each way to leave the engine its last
// token. Ours are more in two cases: host after disk is used, and a prompt that
// is there as a whole may be taken as a whole.
func TestC1MatchingWithTheUnionOfTiersAndWholePrompts(t *testing.T) {
	for _, c := range []struct {
		prompt, computed     int
		host, disk           []int
		kvbm                 int
		nothing, token, last int // by what is reserved
	}{
		{12, 0, []int{0, 1, 2}, nil, 8, 12, 11, 8},
		{13, 0, []int{0, 1, 2}, nil, 12, 12, 12, 12},
		{12, 0, []int{0, 1}, nil, 8, 8, 8, 8},
		{12, 0, []int{0}, []int{1, 2}, 8, 12, 11, 8},
		{12, 0, []int{0, 2}, []int{1}, 8, 12, 11, 8},
		{12, 0, nil, nil, 0, 0, 0, 0},
		{12, 0, []int{1, 2}, nil, 0, 0, 0, 0},
		{12, 4, []int{1, 2}, nil, 4, 8, 7, 4},
		{12, 8, []int{2}, nil, 0, 4, 3, 0},
		{15, 12, nil, nil, 0, 0, 0, 0},
		{4, 0, []int{0}, nil, 0, 4, 3, 0},
		// Beyond the table: KVBM stops behind the disk part, ours does not.
		{21, 0, []int{0, 2, 4}, []int{1, 3}, 8, 20, 20, 20},
	} {
		found := masks(6, c.host, c.disk)
		for reserve, want := range map[Reserve]int{ReserveNothing: c.nothing, ReserveToken: c.token, ReserveBlock: c.last} {
			q := Query{Tokens: c.prompt, Computed: c.computed, BlockSize: 4, Reserve: reserve}
			first, count := q.Wanted()
			blocks, tokens := q.Loadable(found[first : first+count])
			if tokens != want || blocks != (want+3)/4 {
				t.Errorf("%+v, reserve %d: %d tokens in %d blocks, want %d", c, reserve, tokens, blocks, want)
			}
			if reserve == ReserveBlock && c.prompt != 21 && tokens != c.kvbm {
				t.Errorf("%+v: KVBM's rule gives %d tokens, KVBM %d", c, tokens, c.kvbm)
			}
		}
	}
}

func TestComputedTokensInsideABlockAreNotMatched(t *testing.T) {
	for _, q := range []Query{
		{Tokens: 12, Computed: 2, BlockSize: 4},
		{Tokens: 12, Computed: 16, BlockSize: 4},
		{Tokens: 12, Computed: -4, BlockSize: 4},
		{Tokens: 12, BlockSize: 0},
		{Tokens: -1, BlockSize: 4},
	} {
		_, count := q.Wanted()
		blocks, tokens := q.Loadable(masks(3, []int{0, 1, 2}, nil))
		if count != 0 || blocks != 0 || tokens != 0 {
			t.Errorf("%+v: %d wanted, %d blocks, %d tokens", q, count, blocks, tokens)
		}
	}
}

// A request that waits for device blocks is asked for again. Meanwhile the
// engine's own cache may have grown: what was found before is then about other
// blocks.
func TestAnswerFollowsTheComputedTokens(t *testing.T) {
	found := masks(3, []int{0, 1}, []int{2})
	for computed, want := range map[int]int{0: 12, 4: 8, 8: 4, 12: 0} {
		q := Query{Tokens: 13, Computed: computed, BlockSize: 4}
		first, count := q.Wanted()
		if blocks, tokens := q.Loadable(found[first : first+count]); tokens != want || computed/4 != first || blocks != want/4 {
			t.Errorf("%d computed: %d tokens from block %d on, want %d", computed, tokens, first, want)
		}
	}
}

// Token by token: a token is loadable when its block is complete and it and all
// before it are computed or in some tier.
func TestLoadableAgreesWithTheNaiveCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := Query{
			Tokens:    rapid.IntRange(0, 40).Draw(t, "tokens"),
			BlockSize: rapid.IntRange(1, 6).Draw(t, "block size"),
			Reserve:   Reserve(rapid.IntRange(0, 2).Draw(t, "reserve")),
		}
		q.Computed = q.BlockSize * rapid.IntRange(0, q.Tokens/q.BlockSize).Draw(t, "computed blocks")
		tiers := rapid.SliceOfN(rapid.SampledFrom([]kv.TierMask{0, 2, 4, 6, 2, 4}), 0, 45).Draw(t, "found")
		first, count := q.Wanted()
		want := 0
		for token := q.Computed; token < q.Tokens; token++ {
			block := token/q.BlockSize - first
			if (first+block+1)*q.BlockSize > q.Tokens || block >= len(tiers) || tiers[block] == 0 {
				break
			}
			want++
		}
		if want > 0 && q.Computed+want == q.Tokens {
			want -= []int{0, 1, q.BlockSize}[q.Reserve]
		}
		blocks, tokens := q.Loadable(tiers)
		if tokens != want || blocks > count || tokens > blocks*q.BlockSize || tokens <= (blocks-1)*q.BlockSize {
			t.Fatalf("%+v, %v: %d blocks, %d tokens, want %d tokens of at most %d blocks", q, tiers, blocks, tokens, want, count)
		}
	})
}
