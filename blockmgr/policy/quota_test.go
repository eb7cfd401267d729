package policy

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

const none = -1

func TestGiver(t *testing.T) {
	asker := Holder{Weight: 1, Extent: 10, InUse: true}
	for _, tc := range []struct {
		name    string
		holders []Holder // the taker comes first
		first   bool
		want    int
	}{
		{"nobody else", []Holder{asker}, true, none},
		{"the pool unused longest gives first", []Holder{asker, {Bytes: 40, Since: 3}, {Bytes: 20, Since: 2}, {Bytes: 90, InUse: true, Weight: 1}}, false, 2},
		{"an unused pool without blocks gives before one that has been unused for longer", []Holder{asker, {Bytes: 40, Since: 2}, {Bytes: 20, Since: 3, Empty: true}}, false, 2},
		{"of two without blocks the one unused longest gives", []Holder{asker, {Bytes: 40, Since: 3, Empty: true}, {Bytes: 20, Since: 2, Empty: true}}, false, 2},
		{"of two unused equally long the first gives", []Holder{asker, {Bytes: 40, Since: 3}, {Bytes: 40, Since: 3}}, false, 1},
		{"an unused pool without extents has nothing to give", []Holder{asker, {Since: 1}, {Bytes: 10, Since: 2}}, false, 2},
		{"an unused pool keeps its only extent from one that has some", []Holder{asker, {Bytes: 10, Last: true}}, false, none},
		{"an unused pool gives its only extent to one that has none", []Holder{asker, {Bytes: 10, Last: true}}, true, 1},
		{"of those in use the one most over its share gives", []Holder{asker, {Bytes: 45, Weight: 1, InUse: true}, {Bytes: 55, Weight: 1, InUse: true}}, true, 2},
		{"shares go by weight", []Holder{asker, {Bytes: 45, Weight: 1, InUse: true}, {Bytes: 55, Weight: 8, InUse: true}}, true, 1},
		{"of two equally over the one used longer ago gives", []Holder{asker, {Bytes: 50, Weight: 1, InUse: true, Since: 5}, {Bytes: 50, Weight: 1, InUse: true, Since: 4}}, true, 2},
		{"a pool in use keeps its only extent", []Holder{asker, {Bytes: 100, Weight: 1, InUse: true, Last: true}}, true, none},
		{"a pool at its share keeps it", []Holder{asker, {Bytes: 50, Weight: 1, InUse: true}}, true, none},
		{"a taker that would end as far over takes nothing", []Holder{{Bytes: 45, Weight: 1, Extent: 10, InUse: true}, {Bytes: 55, Weight: 1, InUse: true}}, false, none},
		{"a taker that says no size takes nothing from pools in use", []Holder{{Weight: 1, InUse: true}, {Bytes: 100, Weight: 1, InUse: true}}, true, none},
		{"a taker of an empty tier without weights takes what evens out", []Holder{{Extent: 10, InUse: true}, {Bytes: 100, InUse: true}}, true, 1},
		{"weights that overflow are as large as can be", []Holder{{Weight: 1 << 63, Extent: 10, InUse: true}, {Bytes: 100, Weight: 1 << 63, InUse: true}}, true, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			giver, ok := Giver(tc.holders, 0, 100, tc.first)
			if !ok {
				giver = none
			}
			if giver != tc.want {
				t.Errorf("giver %d, want %d", giver, tc.want)
			}
		})
	}
}

func drawHolders(t *rapid.T) []Holder {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Holder {
		return Holder{
			Bytes:  rapid.Uint64Range(0, 200).Draw(t, "bytes"),
			Extent: rapid.Uint64Range(0, 40).Draw(t, "extent"),
			Weight: rapid.Uint64Range(0, 5).Draw(t, "weight"),
			InUse:  rapid.Bool().Draw(t, "in use"),
			Since:  rapid.Uint64Range(0, 9).Draw(t, "since"),
			Last:   rapid.Bool().Draw(t, "last"),
		}
	}), 1, 8).Draw(t, "holders")
}

// mayGive says, from the contract, whether an unused pool has something for the
// taker.
func mayGive(holders []Holder, i, taker int, first bool) bool {
	h := holders[i]
	return i != taker && !h.InUse && h.Bytes > 0 && (first || !h.Last)
}

// share is what a pool in use may have, as a fraction would say it.
func share(holders []Holder, i, taker int, budget uint64) float64 {
	var sum uint64
	for j, h := range holders {
		if h.InUse || j == taker {
			sum += h.Weight
		}
	}
	return float64(budget) * float64(holders[i].Weight) / float64(max(sum, 1))
}

func TestGiverKeepsItsContract(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		holders := drawHolders(t)
		taker := rapid.IntRange(0, len(holders)-1).Draw(t, "taker")
		budget, first := rapid.Uint64Range(0, 500).Draw(t, "budget"), rapid.Bool().Draw(t, "first")
		giver, ok := Giver(holders, taker, budget, first)
		unused := slices.ContainsFunc(holders, func(h Holder) bool { return !h.InUse })
		switch {
		case !ok:
			for i := range holders {
				if mayGive(holders, i, taker, first) {
					t.Fatalf("pool %d is unused and was not asked", i)
				}
			}
		case giver == taker:
			t.Fatal("the taker gives")
		case holders[giver].Bytes == 0:
			t.Fatal("a pool gives what it does not have")
		case holders[giver].InUse:
			for i := range holders {
				if unused && mayGive(holders, i, taker, first) {
					t.Fatalf("pool %d is in use and gives before pool %d", giver, i)
				}
			}
			if g := holders[giver]; g.Last || float64(g.Bytes) <= share(holders, giver, taker, budget)-1 {
				t.Fatalf("pool %d is in use, at its share of %v or on its only extent, and gives", giver, share(holders, giver, taker, budget))
			}
		default:
			for i := range holders {
				if mayGive(holders, i, taker, first) && holders[i].Since < holders[giver].Since {
					t.Fatalf("pool %d has been unused longer than %d", i, giver)
				}
			}
		}
	})
}

// market is a tier whose pools hold extents and ask for more.
type market struct {
	budget  uint64
	extents [][]uint64 // sizes, by pool
	weights []uint64
	size    []uint64 // of the pool's next extent
}

// drawMarket is a market whose extents take from least to most bytes.
func drawMarket(t *rapid.T, least, most uint64) *market {
	m := &market{}
	for range rapid.IntRange(2, 6).Draw(t, "pools") {
		size := rapid.Uint64Range(least, most).Draw(t, "size")
		held := slices.Repeat([]uint64{size}, rapid.IntRange(0, 12).Draw(t, "extents"))
		m.extents, m.size = append(m.extents, held), append(m.size, size)
		m.weights = append(m.weights, rapid.Uint64Range(0, 4).Draw(t, "weight"))
		m.budget += uint64(len(held)) * size
	}
	m.budget += rapid.Uint64Range(0, 11).Draw(t, "room")
	return m
}

func (m *market) held(i int) (sum uint64) {
	for _, size := range m.extents[i] {
		sum += size
	}
	return sum
}

func (m *market) room() uint64 {
	var used uint64
	for i := range m.extents {
		used += m.held(i)
	}
	return m.budget - used
}

func (m *market) holders() []Holder {
	holders := make([]Holder, len(m.extents))
	for i := range holders {
		holders[i] = Holder{Bytes: m.held(i), Extent: m.size[i], Weight: m.weights[i], InUse: true, Last: len(m.extents[i]) == 1}
	}
	return holders
}

// grow gives the taker an extent, when there is room or when others can make it;
// gave is true when somebody had to.
func (m *market) grow(taker int) (grew, gave bool) {
	room, holders, first := m.room(), m.holders(), len(m.extents[taker]) == 0
	left := make([]int, len(holders))
	for i := range left {
		left[i] = len(m.extents[i])
	}
	for room < m.size[taker] {
		giver, ok := Giver(holders, taker, m.budget, first)
		if !ok {
			return false, false
		}
		gave = true
		left[giver]--
		room += m.size[giver]
		holders[giver].Bytes -= m.size[giver]
		holders[giver].Last = left[giver] == 1
	}
	for i, n := range left {
		m.extents[i] = m.extents[i][:n]
	}
	m.extents[taker] = append(m.extents[taker], m.size[taker])
	return true, gave
}

// TestPoolsInUseDoNotTakeFromEachOtherForEver: whoever asks, in whatever order,
// and with extents of different sizes, the number of extents that change hands is
// bounded, and no division of the tier in which somebody had to give comes back.
func TestPoolsInUseDoNotTakeFromEachOtherForEver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMarket(t, 5, 12)
		seen, quiet, moves := make(map[string]bool), 0, 0
		askers := rapid.SliceOfN(rapid.IntRange(0, len(m.extents)-1), 1, 40).Draw(t, "askers")
		for turn := 0; quiet < len(askers)+len(m.extents); turn++ {
			// The drawn order first, then everybody in turn.
			asker := turn % len(m.extents)
			if turn < len(askers) {
				asker = askers[turn]
			}
			state := fmt.Sprint(m.extents)
			if _, gave := m.grow(asker); !gave {
				quiet++
				continue
			}
			if seen[state] {
				t.Fatalf("%s comes back", state)
			}
			seen[state], quiet = true, 0
			if moves++; moves > 1000 {
				t.Fatal("pools take from each other for ever")
			}
		}
	})
}

// TestPoolsInUseEndNearTheirShares: when all want as much as they can get, none
// ends an extent below its share while another is above, unless by its only one.
func TestPoolsInUseEndNearTheirShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 10
		m := drawMarket(t, size, size)
		for quiet, turns := 0, 0; quiet < len(m.extents); turns++ {
			quiet++
			if grew, _ := m.grow(turns % len(m.extents)); grew {
				quiet = 0
			}
			if turns > 10_000 {
				t.Fatal("pools take from each other for ever")
			}
		}
		holders := m.holders()
		for i := range holders {
			under := share(holders, i, i, m.budget) - float64(holders[i].Bytes)
			for j := range holders {
				over := float64(holders[j].Bytes) - share(holders, j, j, m.budget)
				// Shares are rounded down to bytes.
				if under > size+1 && over > 1 && !holders[j].Last {
					t.Fatalf("pool %d is %v under, pool %d is %v over: %v", i, under, j, over, m.extents)
				}
			}
		}
	})
}
