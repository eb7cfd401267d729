package residencytest

import "github.com/blockyard-ai/blockyard/internal/kv"

// Tree is a forest of blocks. Block i's parent has a lower index; -1 is none.
type Tree struct{ Parent []int }

// NewTree returns a forest of n blocks. Parent draws the parent of block i, -1 to i-1.
func NewTree(n int, parent func(i int) int) *Tree {
	t := &Tree{Parent: make([]int, n)}
	for i := range n {
		t.Parent[i] = parent(i)
	}
	return t
}

// Path is the way from the root to block i.
func (t *Tree) Path(i int) []int {
	if i < 0 {
		return nil
	}
	return append(t.Path(t.Parent[i]), i)
}

// TreeHash is the hash of block i.
func TreeHash(i int) kv.SequenceHash { return kv.SequenceHash(i)*0x9e3779b97f4a7c15 + 1 }
