// Package kvgroup says which blocks of a hybrid model's KV groups a prefix needs, and how
// long a prefix a set of blocks can serve.
//
//	groups := kvgroup.Groups{
//		{Kind: kvgroup.Full, BlockSize: 16},
//		{Kind: kvgroup.Sliding, Window: 1024, BlockSize: 16},
//	}
//	tokens := groups.Fit(5000, 0, 16, func(group int, chainBlock uint32) bool {
//		return stored[group][chainBlock]
//	})
//
// A KV group is a set of layers that keep the same part of a prompt: all of it, a
// window, a chunk, or one state. Each group divides a prompt into blocks of its own
// size. A block has the name of the chain block at which it ends.
//
// Guarantees: Fit answers what vLLM's HybridKVCacheCoordinator finds with the same
// blocks, in a model without EAGLE groups. With EAGLE groups Fit asks for the block
// above the prefix in each of them, and never answers a prefix without it. Fit asks
// for each block of each group once at most.
//
// Everything here is a value or a pure function: safe for concurrent use, no I/O, no
// state.
package kvgroup
