package schedule

import (
	"testing"

	"pgregory.net/rapid"
)

func TestSharedHitsBeyondGoldens(t *testing.T) {
	one := FromRanges([]Range{{0, 4}})
	two := FromRanges([]Range{{5, 8}, {1, 3}})
	for _, c := range []struct {
		hits *SharedHits
		want map[int]int
	}{
		{&one, map[int]int{2: 2, 0: 4, 4: 0}},
		{&two, map[int]int{0: 5, 2: 4, 3: 3, 6: 2, 8: 0}},
		{&SharedHits{}, map[int]int{0: 0, 7: 0}},
	} {
		for d, want := range c.want {
			if got := c.hits.Beyond(d); got != want {
				t.Errorf("%v beyond %d: %d, want %d", c.hits.ranges, d, got, want)
			}
		}
		if got := c.hits.TotalHits(); got != c.want[0] {
			t.Errorf("%v: %d hits, want %d", c.hits.ranges, got, c.want[0])
		}
	}
}

// TestSharedHitsCountBlocksOnce: like a set of positions, whatever the ranges.
func TestSharedHitsCountBlocksOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranges := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Range {
			return Range{rapid.Uint32Range(0, 30).Draw(t, "first"), rapid.Uint32Range(0, 30).Draw(t, "end")}
		}), 0, 8).Draw(t, "ranges")
		h := FromRanges(ranges)
		for d := range 32 {
			want := 0
			for at := uint32(d); at < 31; at++ {
				for _, r := range ranges {
					if r.First <= at && at < r.End {
						want++
						break
					}
				}
			}
			if got := h.Beyond(d); got != want {
				t.Fatalf("beyond %d: %d, want %d", d, got, want)
			}
		}
	})
}
