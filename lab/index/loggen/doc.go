// Package loggen makes op logs (package oplog), and the engines and prompts that they
// consist of. Conversations share beginnings. Engines evict the least recently used
// blocks. The answers come from a naive index.
//
//	words, err := loggen.Generate(loggen.Options{Seed: 1, Engines: 32})
//
// Options take away what is easy for an index that keeps runs of blocks: prompts that
// part at any block, stored events of few blocks, shuffled removals, and evictions from
// the middle of a prompt.
//
// Generate is a pure function of its options. Nothing here does I/O. Engine, Traffic
// and Twin are for one goroutine at a time.
package loggen
