package evict

import (
	"container/heap"
	"math"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// never is the next use of a block that is not asked for again.
const never = math.MaxInt

// Optimum returns how many leading blocks of each prompt a cache has that knows the future. A block
// leaves before its ancestors, because each access to the block asks for them too.
func Optimum(accesses []Access, capacity int) []int {
	next := nextUses(accesses)
	o := &optimum{at: make(map[kv.SequenceHash]*entry)}
	hits := make([]int, len(accesses))
	for i, a := range accesses {
		have := 0
		for ; have < a.Prompt && o.at[a.Sequence[have]] != nil; have++ {
		}
		hits[i] = have
		for k, hash := range a.Sequence {
			e := o.at[hash]
			if e == nil {
				if len(o.entries) >= capacity {
					last := o.entries[0]
					if !last.later(next[i][k], k) {
						break // this block and its children are asked for later than all others
					}
					heap.Pop(o)
					delete(o.at, last.hash)
				}
				e = &entry{hash: hash, next: next[i][k], depth: k}
				o.at[hash] = e
				heap.Push(o, e)
				continue
			}
			e.next = next[i][k]
			heap.Fix(o, e.index)
		}
	}
	return hits
}

// nextUses returns, for each block of each access, the number of the next access whose prompt has it.
func nextUses(accesses []Access) [][]int {
	coming := make(map[kv.SequenceHash]int)
	next := make([][]int, len(accesses))
	for i := len(accesses) - 1; i >= 0; i-- {
		a := &accesses[i]
		next[i] = make([]int, len(a.Sequence))
		for k, hash := range a.Sequence {
			next[i][k] = never
			if n, ok := coming[hash]; ok {
				next[i][k] = n
			}
			if k < a.Prompt {
				coming[hash] = i
			}
		}
	}
	return next
}

// optimum is a heap of the resident blocks, the one that is asked for last first.
type optimum struct {
	entries []*entry
	at      map[kv.SequenceHash]*entry
}

type entry struct {
	hash               kv.SequenceHash
	next, depth, index int
}

// later reports whether e is asked for later than a block with a next use and a depth. Of the blocks
// of one prompt the deepest counts as the latest.
func (e *entry) later(next, depth int) bool {
	if e.next != next {
		return e.next > next
	}
	return e.depth > depth
}

// Len implements heap.Interface.
func (o *optimum) Len() int { return len(o.entries) }

// Less implements heap.Interface.
func (o *optimum) Less(i, j int) bool {
	return o.entries[i].later(o.entries[j].next, o.entries[j].depth)
}

// Swap implements heap.Interface.
func (o *optimum) Swap(i, j int) {
	o.entries[i], o.entries[j] = o.entries[j], o.entries[i]
	o.entries[i].index, o.entries[j].index = i, j
}

// Push implements heap.Interface.
func (o *optimum) Push(x any) {
	e := x.(*entry)
	e.index = len(o.entries)
	o.entries = append(o.entries, e)
}

// Pop implements heap.Interface.
func (o *optimum) Pop() any {
	last := o.entries[len(o.entries)-1]
	o.entries = o.entries[:len(o.entries)-1]
	return last
}
