package approx_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/approx"
	"github.com/blockyard-ai/blockyard/router/index"
)

// TestApproxModel: after any sequence of decisions, waits and removals the answers
// equal those of a map from blocks to when they expire, and never more than the
// bound are kept.
func TestApproxModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1000, 0)
		start := now
		ttl := time.Duration(rapid.IntRange(0, 1000).Draw(t, "ttl ms")) * time.Millisecond
		limit := rapid.SampledFrom([]int{0, 3, 8, 30}).Draw(t, "max blocks")
		ratio := rapid.SampledFrom([]float64{0, 0.5, 0.8, 1}).Draw(t, "prune ratio")
		a, err := approx.New(approx.Options{TTL: ttl, MaxBlocks: limit, PruneRatio: ratio, Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		naive := &approxTwin{limit: limit, keep: int(ratio * float64(limit))}
		for id := range 3 {
			if err := a.SetMember(worker(id+1, 0), 0, true); err != nil {
				t.Fatal(err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"route": func(t *rapid.T) {
				w := worker(rapid.IntRange(1, 3).Draw(t, "worker"), 0)
				prompt := drawShort(t, "prompt")
				seq := kv.AppendSequence(nil, prompt)
				if err := a.Record(w, prompt, seq); err != nil {
					t.Fatal(err)
				}
				naive.route(w, seq, now, start, ttl)
			},
			"wait": func(*rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 700).Draw(t, "ms")) * time.Millisecond)
			},
			"tick": func(t *rapid.T) {
				if got, want := a.Tick(), naive.expire(now); got != want {
					t.Fatalf("%d blocks expired, want %d", got, want)
				}
			},
			"leave": func(t *rapid.T) {
				w := worker(rapid.IntRange(1, 3).Draw(t, "worker"), 0)
				if err := errors.Join(a.RemoveWorker(w), a.SetMember(w, 0, true)); err != nil {
					t.Fatal(err)
				}
				naive.blocks = slices.DeleteFunc(naive.blocks, func(b routed) bool { return b.worker == w })
			},
			"": func(t *rapid.T) {
				prompt := drawShort(t, "asked")
				var m index.Matches
				if err := a.Match(&m, prompt); err != nil {
					t.Fatal(err)
				}
				naive.expire(now)
				if diff := cmp.Diff(naive.match(prompt), workerHits(t, &m), cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("match (-want +got):\n%s", diff)
				}
				if s := a.Stats(); s.Blocks != len(naive.blocks) || s.Index.Memberships != len(naive.blocks) {
					t.Fatalf("%d blocks, %d memberships, want %d", s.Blocks, s.Index.Memberships, len(naive.blocks))
				}
			},
		})
	})
}

// routed is a block in an approxTwin.
type routed struct {
	worker kv.Worker
	hash   kv.SequenceHash
	due    time.Time
}

// approxTwin keeps a list in the order of expiry.
type approxTwin struct {
	limit, keep int
	blocks      []routed
}

func (a *approxTwin) route(w kv.Worker, seq []kv.SequenceHash, now, start time.Time, ttl time.Duration) {
	a.expire(now)
	if ttl == 0 {
		return
	}
	const tick = 100 * time.Millisecond
	due := start.Add((now.Sub(start) + ttl + tick - 1) / tick * tick)
	for _, h := range slices.Backward(seq) {
		a.blocks = slices.DeleteFunc(a.blocks, func(b routed) bool { return b.worker == w && b.hash == h })
		a.blocks = append(a.blocks, routed{w, h, due})
	}
	if a.limit > 0 && len(a.blocks) > a.limit {
		a.blocks = a.blocks[len(a.blocks)-a.keep:]
	}
}

func (a *approxTwin) expire(now time.Time) int {
	n := len(a.blocks)
	a.blocks = slices.DeleteFunc(a.blocks, func(b routed) bool { return !b.due.After(now) })
	return n - len(a.blocks)
}

func (a *approxTwin) match(prompt []kv.LocalHash) map[kv.Worker]index.Hits {
	out := make(map[kv.Worker]index.Hits)
	for id := range 3 {
		w, n := worker(id+1, 0), uint32(0)
		for _, h := range kv.AppendSequence(nil, prompt) {
			if !slices.ContainsFunc(a.blocks, func(b routed) bool { return b.worker == w && b.hash == h }) {
				break
			}
			n++
		}
		if n > 0 {
			out[w] = device(n)
		}
	}
	return out
}

// drawShort draws a prompt of few blocks and few kinds of them.
func drawShort(t *rapid.T, label string) []kv.LocalHash {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) kv.LocalHash {
		return kv.LocalHash(rapid.IntRange(1, 3).Draw(t, "local"))
	}), 0, 6).Draw(t, label)
}
