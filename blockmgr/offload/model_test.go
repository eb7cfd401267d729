package offload

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// twin is a request token by token and block by block.
type twin struct {
	rules      Rules
	ids        []uint32
	priority   map[uint32]uint32
	known      int
	there      int // tokens with KV after the last step
	done       map[int]bool
	ended      bool
	endedBlock int
}

// merge tries every overlap, the longest first.
func (w *twin) merge(more []uint32) ([]uint32, bool) {
	for n := min(len(w.ids), len(more)); n >= 0; n-- {
		if !slices.Equal(w.ids[len(w.ids)-n:], more[:n]) {
			continue
		}
		all := slices.Concat(w.ids, more[n:])
		for i, id := range all {
			if slices.Contains(all[:i], id) {
				return nil, false
			}
		}
		return all, true
	}
	return nil, false
}

func (w *twin) scheduled(computed, scheduled int, more, priorities []uint32) (offered []int, ok bool) {
	all, ok := w.merge(more)
	if !ok || priorities != nil && len(priorities) != len(more) {
		return nil, false
	}
	if computed < 0 || scheduled < 0 || computed+scheduled > len(all)*w.rules.BlockSize {
		return nil, false
	}
	for i, p := range priorities {
		w.priority[more[i]] = p
	}
	w.ids = all
	for b := range all {
		if computed > w.there && (b+1)*w.rules.BlockSize <= computed {
			w.done[b] = true // the engine had it
		}
	}
	w.there = computed + scheduled
	for b, id := range all {
		if w.done[b] {
			continue
		}
		for token := b * w.rules.BlockSize; token < (b+1)*w.rules.BlockSize; token++ {
			if token >= w.there || token >= w.known {
				return offered, true
			}
		}
		if w.ended && b >= w.endedBlock {
			return offered, true
		}
		w.done[b] = true
		if w.priority[id] < w.rules.MinPriority {
			w.ended, w.endedBlock = true, b
			return offered, true
		}
		offered = append(offered, b)
	}
	return offered, true
}

func (w *twin) preempted() {
	w.ids, w.there = nil, 0
	w.priority, w.done = make(map[uint32]uint32), make(map[int]bool)
}

// draw draws what an engine says next: mostly sense, sometimes not.
func (w *twin) draw(t *rapid.T) (computed, scheduled int, more, priorities []uint32) {
	if rapid.Bool().Draw(t, "sense") {
		repeat := rapid.IntRange(0, len(w.ids)).Draw(t, "repeat")
		more = slices.Clone(w.ids[len(w.ids)-repeat:])
		next := uint32(len(w.ids)) + 100
		for range rapid.IntRange(0, 3).Draw(t, "new") {
			more = append(more, next)
			next++
		}
		room := (len(w.ids) + len(more) - repeat) * w.rules.BlockSize
		computed = rapid.IntRange(max(0, min(w.there-2, room)), room).Draw(t, "computed")
		if rapid.Bool().Draw(t, "step by step") {
			computed = min(w.there, room)
		}
		scheduled = rapid.IntRange(0, room-computed).Draw(t, "scheduled")
	} else {
		more = rapid.SliceOfN(rapid.Uint32Range(100, 106), 0, 4).Draw(t, "ids")
		computed = rapid.IntRange(-1, 40).Draw(t, "any computed")
		scheduled = rapid.IntRange(-1, 20).Draw(t, "any scheduled")
	}
	if rapid.Bool().Draw(t, "with priorities") {
		n := len(more) + max(0, rapid.IntRange(-8, 1).Draw(t, "too many"))
		priorities = rapid.SliceOfN(rapid.Uint32Range(0, 9), n, n).Draw(t, "priorities")
	}
	return computed, scheduled, more, priorities
}

func TestRequestAgreesWithATwinThatLooksAtEveryToken(t *testing.T) {
	offered, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		rules := Rules{BlockSize: rapid.IntRange(1, 4).Draw(t, "block size"), MinPriority: rapid.SampledFrom([]uint32{0, 0, 2}).Draw(t, "min")}
		prompt := rapid.IntRange(0, 30).Draw(t, "prompt")
		r, err := NewRequest(rules, prompt)
		if err != nil {
			t.Fatal(err)
		}
		w := &twin{rules: rules, known: prompt}
		w.preempted()
		t.Repeat(map[string]func(*rapid.T){
			"schedule": func(t *rapid.T) {
				computed, scheduled, more, priorities := w.draw(t)
				want, ok := w.scheduled(computed, scheduled, more, priorities)
				run, err := r.Scheduled(computed, scheduled, more, priorities)
				if (err == nil) != ok {
					t.Fatalf("error %v, the twin accepts: %v", err, ok)
				}
				if !ok {
					refused++
				}
				got := make([]int, 0, run.Count())
				for i, id := range run.Blocks {
					got = append(got, run.First+i)
					if id != w.ids[run.First+i] || run.Priorities[i] != w.priority[id] {
						t.Fatalf("block %d is %d of priority %d, want %d of %d", run.First+i, id, run.Priorities[i], w.ids[run.First+i], w.priority[id])
					}
				}
				if !slices.Equal(got, want) {
					t.Fatalf("offered %v, want %v", got, want)
				}
				offered += len(got)
			},
			"extend": func(t *rapid.T) {
				n := rapid.IntRange(0, 5).Draw(t, "tokens")
				if err := r.Extend(n); err != nil {
					t.Fatal(err)
				}
				w.known += n
			},
			"ask": func(t *rapid.T) {
				computed := rapid.IntRange(0, 40).Draw(t, "computed")
				if computed < w.there {
					w.preempted()
				}
				if got := r.Asks(computed); got != (w.there == 0) {
					t.Fatalf("asks %v with %d tokens there", got, w.there)
				}
			},
			"preempt": func(*rapid.T) {
				r.Preempted()
				w.preempted()
			},
		})
	})
	if offered == 0 || refused == 0 {
		t.Errorf("%d blocks offered, %d calls refused: the check saw nothing", offered, refused)
	}
}
