//go:build !amd64

package runs

// Prefetch does nothing on this architecture.
func Prefetch([]Word) {}

// PrefetchHead does nothing on this architecture.
func PrefetchHead(*Head) {}

// prefetchSlot does nothing on this architecture.
func prefetchSlot(*uint64) {}

// prefetchState does nothing on this architecture.
func prefetchState(*WriterState) {}

// equalRun reports whether a and b are equal, and loads ahead and next into the cache.
func equalRun(a, b *[MaxBlocks]Word, ahead, next []Word) bool {
	return equalRunInTurn(a, b, ahead, next)
}
