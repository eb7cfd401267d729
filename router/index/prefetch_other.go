//go:build !amd64

package index

// prefetch asks for words to be brought near. Here it does nothing.
func prefetch([]word) {}

// prefetchHead asks for a head to be brought near. Here it does nothing.
func prefetchHead(*head) {}

// prefetchSlot asks for a slot of a table to be brought near. Here it does nothing.
func prefetchSlot(*uint64) {}
