// Package load keeps account of the active requests of each worker.
//
//	a, err := load.New(load.Options{})
//	a.Align(members)                   // the columns follow this list
//	err = a.Add(&load.Request{ID: "r1", Worker: w, Sequence: blocks, PrefillTokens: 900})
//	loads := a.Columns()               // prefill tokens, active blocks, requests
//	err = a.MarkPrefillCompleted("r1") // at the first token
//	_, _ = a.Free("r1")                // at the end
//
// A request loads its worker in three ways. Uncached prompt tokens count as prefill
// until the prefill is marked complete. With an expected duration they run down by
// themselves. Prompt blocks count as active until the request is freed, and a block
// that several requests of a worker share counts once. Generated blocks count with
// a weight that may decay.
//
// Prompts live in one compressed trie for all workers. A node is a run of blocks,
// so that a prompt of hundreds of blocks touches as many nodes as it has branches.
// A block is identified with its prefix.
//
// A request expires after Options.Expiry without a call for it, however long it has run.
// Options.MaxRequests and Options.MaxBlocks bound the memory.
//
// An Account has no lock: its calls must not overlap. It does no I/O and starts no
// goroutine.
package load
