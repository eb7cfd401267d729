// Package offload decides, for one request of an engine, what is worth moving:
// which of its blocks to offer for storing after each scheduler step, and how
// much of its prompt a lookup allows to be loaded. It is arithmetic over tokens
// and block numbers; it knows no engine, no tier and no bytes, and does no I/O.
//
// # Storing
//
// A Request follows what the engine's scheduler says. Scheduled names, for each
// step, the tokens that were computed before it and those that it computes, and
// returns the Run of blocks that are complete after it and were not returned
// before:
//
//	tokens  0      4      8    10      block size 4, prompt of 10
//	step 1  ├────────┤                 6 tokens: block 0
//	step 2           ├──────┤          4 tokens: block 1; the tail is no block
//
// What it guarantees:
//
//   - A block is returned only when the KV of all its tokens is there after the
//     step, and all its tokens are known. Guesses that a step computes for
//     speculative decoding are not known; what they leave behind is never offered.
//   - A block is returned once, until Preempted.
//   - What the engine had without computing it in this request, from its own
//     prefix cache or by a load, is not returned: it was stored before.
//   - At the first block of a priority below Rules.MinPriority offload ends for
//     good: neither later blocks nor a preemption open it again. So no block is
//     stored whose prefix was left out on purpose.
//
// # Loading
//
// A Query says which blocks are worth a lookup, and what of the answer may be
// loaded. It takes the union of all tiers: a block counts wherever it lies, so
// that disk after host after disk is one run.
//
// # Ownership and concurrency
//
// A Request belongs to one goroutine. The slices of a Run are lent until the next
// call. A Query is a value.
//
// # Failure
//
// What an engine says is checked before anything is changed: a call that returns
// an error has had no effect. Nothing panics, whatever the numbers.
package offload
