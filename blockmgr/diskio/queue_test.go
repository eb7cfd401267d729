package diskio

import (
	"cmp"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"pgregory.net/rapid"
)

func TestWriteQueueHandsOutPriorityThenAge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q WriteQueue
		var want []writeItem // in order of their ages
		age := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				age++
				item := writeItem{registry.Ref(age), rapid.Uint32Range(0, 3).Draw(t, "priority"), age}
				q.Push(item.ref, item.priority)
				want = append(want, item)
			},
			"pop": func(t *rapid.T) {
				if len(want) == 0 {
					t.Skip()
				}
				first := slices.MinFunc(want, func(a, b writeItem) int {
					return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.age, b.age))
				})
				want = slices.DeleteFunc(want, func(i writeItem) bool { return i == first })
				if got := q.Pop(); got != first.ref {
					t.Errorf("popped %d, want %d", got, first.ref)
				}
			},
			"": func(t *rapid.T) {
				if q.Len() != len(want) {
					t.Errorf("%d in the queue, want %d", q.Len(), len(want))
				}
			},
		})
	})
}
