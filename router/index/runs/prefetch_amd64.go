package runs

// Prefetch loads words into the cache without waiting for them.
//
//go:noescape
func Prefetch(words []Word)

// PrefetchHead loads a head into the cache without waiting for it.
//
//go:noescape
func PrefetchHead(h *Head)

// prefetchSlot loads a slot of a table into the cache without waiting for it.
//
//go:noescape
func prefetchSlot(slot *uint64)

// prefetchState loads the writer's part of a run into the cache without waiting for it.
//
//go:noescape
func prefetchState(s *WriterState)
