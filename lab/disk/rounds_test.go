package disk

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRoundsAlternateAfterOneThatDoesNotCount(t *testing.T) {
	var order []string
	pairOf := func(name string, ours, limit time.Duration) *pair {
		one := func(who string, d time.Duration) side {
			return func(context.Context) (sample, error) {
				order = append(order, name+who)
				return sample{ops: 2, bytes: 1000, elapsed: d}, nil
			}
		}
		return &pair{what: name, against: "limit", block: 500, ours: one(" ours", ours), ceiling: one(" limit", limit)}
	}
	got, err := alternate(t.Context(), 0, pairOf("a", 2*time.Second, time.Second), pairOf("b", time.Second, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Ratio.N != minRounds || got[0].Ops != 2*minRounds || got[0].Bytes != 1000*minRounds {
		t.Errorf("comparisons %+v, want two of %d rounds", got, minRounds)
	}
	if got[0].Ratio.Median != 0.5 || got[1].Ratio.Median != 1 || got[0].Ours.Median != 500 {
		t.Errorf("medians %+v", got)
	}
	want := []string{
		"a ours", "a limit", "b ours", "b limit", // not counted
		"a ours", "a limit", "b ours", "b limit",
		"a limit", "a ours", "b limit", "b ours",
	}
	if !slices.Equal(order[:len(want)], want) {
		t.Errorf("order %q, want %q", order[:len(want)], want)
	}
}

func TestFailedSideEndsTheComparisonAndIsNamed(t *testing.T) {
	bad := errors.New("device is gone")
	p := &pair{
		what: "disk read", block: 4096,
		ours:    func(context.Context) (sample, error) { return sample{1, 4096, 1}, nil },
		ceiling: func(context.Context) (sample, error) { return sample{}, bad },
	}
	if _, err := alternate(t.Context(), 0, p); !errors.Is(err, bad) || !strings.Contains(err.Error(), "disk read of blocks of 4096 bytes") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := alternate(ctx, 0, p); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that the context ended", err)
	}
}

func TestSidesThatMoveDifferentAmountsAreNotCompared(t *testing.T) {
	move := func(bytes uint64) side {
		return func(context.Context) (sample, error) { return sample{1, bytes, 1}, nil }
	}
	p := &pair{what: "copy", against: "memcpy", ours: move(1), ceiling: move(2)}
	if _, err := alternate(t.Context(), 0, p); err == nil {
		t.Error("1 byte was compared with 2")
	}
}
