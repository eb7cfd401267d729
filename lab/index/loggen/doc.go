// Package loggen makes op logs (package oplog) and the engines and prompts they
// are made of: conversations that share beginnings, engines whose prefix caches
// evict the longest unused blocks, and for every query the answer of a naive index
// that is right because it is simple.
//
// What is easy for an index that keeps runs of blocks can be taken away: prompts
// that part ways at any block instead of multiples of 32, stored events of few
// blocks, removals in any order within an event, and blocks that are evicted from
// the middle of what is held.
//
// Generate is a pure function of its options: equal options give equal logs.
// Nothing here does I/O. Engine, Traffic and Twin are for one goroutine at a time.
package loggen
