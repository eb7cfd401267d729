// Package kv defines the words that every package uses: tiers, owners, and the identities
// of a KV block. No other package defines names of its own for them.
//
// A block is the KV of page_size consecutive tokens. It has four names, and
// confusing two of them serves wrong bytes or loses hits:
//
//   - LocalHash: XXH3-64 of the block's own tokens, with LoRA and salt mixed
//     into the seed. Content only; says nothing about what came before.
//   - SequenceHash: XXH3-64 chain over LocalHashes. Content with its whole
//     prefix. The identity in events and in the router.
//   - EngineHash: whatever the engine calls the block. Opaque; never compared
//     between two engines, or between two runs of one.
//   - BlockKey: 128 bits of SHA-256 over namespace, LoRA, salt, tokens and
//     other inputs. The identity of stored bytes. Computed by the agent from
//     tokens, never taken from a client.
//
// LocalHash and SequenceHash are bit-exact with NVIDIA Dynamo's router (XXH3
// seed 1337), so that the two can read one another's events. BlockKey is our
// own; its encoding is frozen in testdata/blockkey.txt.
//
// Everything here is a value or a pure function: safe for concurrent use, no
// I/O, no state.
package kv
