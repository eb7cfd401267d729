package index

// prefetch asks for words to be brought near, and does not wait for them.
//
//go:noescape
func prefetch(words []word)

// prefetchHead asks for a head to be brought near, and does not wait for it.
//
//go:noescape
func prefetchHead(h *head)

// prefetchSlot asks for a slot of a table to be brought near, and does not wait
// for it.
//
//go:noescape
func prefetchSlot(slot *uint64)
