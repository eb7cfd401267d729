// Package merge makes few large events of the many small events of a message.
//
//	var m merge.Merger
//	for len(events) > 0 {
//		n := m.Take(events)
//		apply(m.Events) // in place of events[:n]
//		m.Release()
//		events = events[n:]
//	}
//
// vLLM tells of each evicted block in an event of its own. An index applies one event of
// a hundred blocks in a fraction of the time of a hundred events.
//
// Guarantees: Events leave an owner with the same (block, tier) pairs as the taken events.
// Events has removals first, and then stores in their order. So Take ends before a removal
// that must not come earlier: of a block that a taken event stores or names as its parent.
//
// Ownership: Events may refer to the caller's events and to memory of the Merger. They are
// valid until Release or the next Take. A Merger belongs to one goroutine at a time.
package merge
