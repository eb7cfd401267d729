package load

import (
	"cmp"
	"slices"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// one is the weight of a whole block. Weights are integers, so that additions are
// undone exactly.
const one = 1 << 30

// trie has the prompts of the active requests of all workers. nodes and blocks count its
// content.
type trie struct {
	root          node
	nodes, blocks int
}

// node is a run of blocks without a branch. It continues the runs of its ancestors.
type node struct {
	parent   *node
	hashes   []kv.SequenceHash
	children map[kv.SequenceHash]*node // by the first hash of the child
	// shares has an element for each worker with a request through this node, ordered by slot.
	// A worker of a node is one of the parent too.
	shares []share
	// endingRequests is the number of requests whose blocks end with the node.
	endingRequests int32
}

// share says how one worker uses a node.
type share struct {
	// slot is the worker's index in Account.slots.
	slot int32
	// requests is the number of the worker's requests through the node. weight is the
	// weight of each block of the node for the worker; one is a whole block.
	requests, weight int32
}

// find returns the position of a worker's share in n.shares. Without a share it returns false
// and the position to insert one.
func (n *node) find(slot int32) (int, bool) {
	return slices.BinarySearchFunc(n.shares, slot, func(h share, slot int32) int { return cmp.Compare(h.slot, slot) })
}

// common returns the length of the longest common prefix.
func common(a, b []kv.SequenceHash) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// add counts a request whose prompt blocks are sequence, not empty, for the worker with that slot.
// It returns the node where sequence ends, for free and weigh, and the weight of the blocks that no
// other request of the worker uses.
func (t *trie) add(sequence []kv.SequenceHash, slot int32) (end *node, added int64) {
	end = t.open(sequence)
	end.endingRequests++
	for n := end; n != &t.root; n = n.parent {
		i, ok := n.find(slot)
		if ok {
			n.shares[i].requests++
			continue
		}
		n.shares = slices.Insert(n.shares, i, share{slot: slot, requests: 1, weight: one})
		added += int64(len(n.hashes)) * one
	}
	return end, added
}

// open returns the node that ends with the last block of sequence. It adds missing nodes, and
// splits a node in which sequence ends or branches off.
func (t *trie) open(sequence []kv.SequenceHash) *node {
	at := &t.root
	for len(sequence) > 0 {
		child := at.children[sequence[0]]
		if child == nil {
			child = &node{parent: at, hashes: slices.Clone(sequence)}
			at.adopt(child)
			t.nodes++
			t.blocks += len(sequence)
			return child
		}
		n := common(child.hashes, sequence)
		if n < len(child.hashes) {
			child = t.split(child, n)
		}
		at, sequence = child, sequence[n:]
	}
	return at
}

// adopt makes child a child of n, by its first hash.
func (n *node) adopt(child *node) {
	if n.children == nil {
		n.children = make(map[kv.SequenceHash]*node, 1)
	}
	n.children[child.hashes[0]] = child
	child.parent = n
}

// split moves the first n blocks of lower into a new parent of lower and returns the parent.
// Each node gets an array of its own, so that freeing one node frees its memory.
func (t *trie) split(lower *node, n int) *node {
	upper := &node{hashes: slices.Clone(lower.hashes[:n]), shares: slices.Clone(lower.shares)}
	lower.parent.adopt(upper)
	lower.hashes = slices.Clone(lower.hashes[n:])
	upper.adopt(lower)
	t.nodes++
	return upper
}

// free removes a request of the worker with that slot, whose blocks end at node end. free returns
// the weight of the blocks that no other request of the worker uses. Nodes without a request go.
func (t *trie) free(end *node, slot int32) (removed int64) {
	end.endingRequests--
	for n := end; n != &t.root; {
		i, _ := n.find(slot)
		if h := &n.shares[i]; h.requests > 1 {
			h.requests--
		} else {
			removed += int64(len(n.hashes)) * int64(h.weight)
			n.release(i)
		}
		if len(n.shares) > 0 { // other requests use the node, perhaps without a branch now
			n = t.merge(n).parent
			continue
		}
		delete(n.parent.children, n.hashes[0])
		t.nodes--
		t.blocks -= len(n.hashes)
		n = n.parent
	}
	return removed
}

// release removes the share at position i: its worker has no request through n any more.
func (n *node) release(i int) {
	n.shares = slices.Delete(n.shares, i, i+1)
	// Give back the memory of a node that had many more workers.
	if cap(n.shares) >= 16 && len(n.shares) <= cap(n.shares)/4 {
		n.shares = append(make([]share, 0, 2*len(n.shares)), n.shares...)
	}
}

// merge keeps the trie compressed: it joins n and its only child if the same requests use both. It
// returns the node that then has the blocks of n.
func (t *trie) merge(n *node) *node {
	if n.endingRequests > 0 || len(n.children) != 1 {
		return n
	}
	for _, child := range n.children { // the only one
		if !slices.Equal(n.shares, child.shares) {
			return n
		}
		child.hashes = slices.Concat(n.hashes, child.hashes)
		n.parent.adopt(child)
		t.nodes--
		n = child
	}
	return n
}

// shared returns how many leading blocks the sequences have in common that end at nodes a and b.
func (t *trie) shared(a, b *node) (blocks int32) {
	deepA, deepB := a.level(), b.level()
	for ; deepA > deepB; deepA-- {
		a = a.parent
	}
	for ; deepB > deepA; deepB-- {
		b = b.parent
	}
	for a != b {
		a, b = a.parent, b.parent
	}
	for ; a != &t.root; a = a.parent {
		blocks += int32(len(a.hashes))
	}
	return blocks
}

// level returns the number of ancestors of n.
func (n *node) level() (ancestors int) {
	for ; n.parent != nil; n = n.parent {
		ancestors++
	}
	return ancestors
}

// weigh gives the blocks of a request a new weight, except blocks that another request of the
// worker uses too. The request ends at node end. weigh returns the change of the worker's sum of
// weights.
func (t *trie) weigh(end *node, slot, weight int32) (change int64) {
	for n := end; n != &t.root; {
		i, _ := n.find(slot)
		h := &n.shares[i]
		if h.requests > 1 { // the other request uses all ancestors too
			break
		}
		change += int64(len(n.hashes)) * int64(weight-h.weight)
		h.weight = weight
		n = t.merge(n).parent
	}
	return change
}
