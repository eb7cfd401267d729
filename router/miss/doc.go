// Package miss says why an engine computed tokens of a prompt that some cache has or had.
//
//	m := miss.NewMemory(1<<20, time.Now())
//	h := m.Of()                               // one for each model
//	h.Removed(owner, kv.TierDevice, hashes, miss.Moment{At: time.Now()})
//	...
//	r := h.Explain(&prompt, &miss.Outcome{Delivered: 64})
//	for _, p := range r.Parts {
//		fmt.Println(p.Cause, p.Tokens, p.Owner)
//	}
//
// A Memory remembers the blocks that left the index lately, with owner, tier and time. Package feed
// fills it from events. A Prompt is what a decision knew of a request, and an Outcome what the
// engine reported. Explain compares the two and gives each token that was not cached one Cause. A
// Log keeps the last reports and their sums.
//
// Guarantees: the tokens of a report's Parts add up to the tokens that the engine computed. A block
// that the Memory has forgotten counts as new content.
//
// Memory: a Memory has a fixed number of blocks of 24 bytes. A new block takes the place of the
// oldest of four. A Log has a fixed number of reports, each of at most 30 parts. A Log lets
// finished requests wait for late events; the blocks of those requests are bounded.
//
// Concurrency: all methods may be called from any goroutine. Each type has one lock, held for a few
// nanoseconds a block, or for the search of one message that came late. No lock is held while another one is taken.
package miss
