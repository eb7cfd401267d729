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
