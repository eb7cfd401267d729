package policy

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// TestNoDayExceedsTheBudget: in no 24 hours are more bytes written than the budget, whenever they are asked
// for and however long writes take. The last day is the sum of its hours. Bytes that were not written are
// there again, up to a full bucket.
func TestNoDayExceedsTheBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const perDay = LeastWriteBudget
		now := time.Unix(rapid.Int64Range(0, 1e9).Draw(t, "begin"), 0)
		b, err := NewWriteBudget(perDay, now)
		if err != nil {
			t.Fatal(err)
		}
		type write struct {
			at    time.Time
			bytes uint64
		}
		var written []write
		var underWay []uint64
		settle := func(isWritten bool) {
			i := rapid.IntRange(0, len(underWay)-1).Draw(t, "write")
			bytes := underWay[i]
			underWay = slices.Delete(underWay, i, i+1)
			before := b.Stats(now).LeftBytes
			b.Settle(bytes, isWritten, now)
			if isWritten {
				written = append(written, write{now, bytes})
			} else if left := b.Stats(now).LeftBytes; left > b.Most() || left+1 < before+bytes {
				t.Fatalf("%d bytes are left after %d were given back to %d", left, bytes, before)
			}
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 60, 3600, 5000, 86_400}).Draw(t, "seconds")) * time.Second)
			late := now.Add(-time.Duration(rapid.IntRange(0, 7200).Draw(t, "late")) * time.Second)
			bytes := rapid.Uint64Range(1, perDay/20).Draw(t, "bytes")
			if b.Stats(now); b.Reserve(bytes, late) {
				underWay = append(underWay, bytes)
			}
			for len(underWay) > 0 && rapid.Bool().Draw(t, "settle") {
				settle(rapid.Bool().Draw(t, "written"))
			}
			inDay, byHour := uint64(0), uint64(0)
			for _, k := range written {
				if now.Sub(k.at) < 24*time.Hour {
					inDay += k.bytes
				}
				if now.Unix()/3600-k.at.Unix()/3600 < 24 {
					byHour += k.bytes
				}
			}
			if st := b.Stats(now); inDay > perDay || st.DayBytes != byHour {
				t.Fatalf("%d bytes in a day of %d; the gauge has %d, want %d", inDay, perDay, st.DayBytes, byHour)
			}
		}
	})
}

// TestParallelCallsShareTheFlow: callers read the clock before they get the lock, so that calls come out of
// order. No time flows in twice.
func TestParallelCallsShareTheFlow(t *testing.T) {
	const perDay, callers, calls, block = 100 << 30, 8, 10_000, 1 << 10
	begin := time.Unix(0, 0)
	b, _ := NewWriteBudget(perDay, begin)
	var clock, taken atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range calls {
				now := begin.Add(time.Duration(clock.Add(1)) * time.Millisecond)
				runtime.Gosched() // another caller comes first
				for b.Reserve(block, now) {
					taken.Add(block)
				}
			}
		})
	}
	all.Wait()
	if flow := int64(perDay) / 25 * callers * calls / 3_600_000; taken.Load() > flow {
		t.Errorf("%d bytes taken while %d flowed in", taken.Load(), flow)
	}
}

// TestAnUnusedBudgetIsUsable: after an hour an idle budget grants most of an hour's share, and a day of
// demand gets nearly all of the budget.
func TestAnUnusedBudgetIsUsable(t *testing.T) {
	const perDay, block = 100 << 30, 1 << 20
	now := time.Unix(0, 0)
	b, _ := NewWriteBudget(perDay, now)
	if b.Reserve(block, now) {
		t.Error("a budget begins with bytes: restarts would exceed it")
	}
	taken := 0
	for range 24 * 60 {
		now = now.Add(time.Minute)
		for b.Reserve(block, now) {
			b.Settle(block, true, now)
			taken += block
		}
	}
	if taken < perDay*9/10 {
		t.Errorf("a day of demand got %d of %d bytes", taken, perDay)
	}
}

// TestScarceBytesGoToDemand: a full budget lets blocks pass that are stored for the first time. The
// emptier it is the more uses a block needs, and an empty one lets none pass.
func TestScarceBytesGoToDemand(t *testing.T) {
	now := time.Unix(0, 0)
	b, _ := NewWriteBudget(LeastWriteBudget, now)
	f, err := NewFrequencyFilter(FrequencyOptions{Min: 1, Decay: time.Hour * 1000, Budget: b, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	block := kv.SequenceHash(0)
	passes := func(uses int) bool { // a new block with that many uses before
		block++
		for range uses {
			f.countLocked(block, now)
		}
		return f.ShouldOffload(block)
	}
	if passes(8) {
		t.Error("an empty budget lets a block pass")
	}
	now = now.Add(2 * time.Hour)
	left := b.Stats(now).LeftBytes
	for k, want := range []int{0, 1, 2, 3} { // full, a half, a quarter, an eighth
		for uses := range 5 {
			if got := passes(uses); got != (uses >= want) {
				t.Errorf("after %d halvings, a block with %d uses passes: %v", k, uses, got)
			}
		}
		b.Wrote(left>>(k+1)+1<<10, now)
	}
	if st := b.Stats(now); st.Refused == 0 || f.Stats().Rejected < st.Refused {
		t.Errorf("%+v, %+v", st, f.Stats())
	}
}

// TestWriteBudgetBounds: the error names the least budget.
func TestWriteBudgetBounds(t *testing.T) {
	if _, err := NewWriteBudget(LeastWriteBudget-1, time.Unix(0, 0)); err == nil {
		t.Error("a budget that holds no block is accepted")
	}
}
