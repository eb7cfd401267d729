package runs

import "golang.org/x/sys/cpu"

// equalRun reports whether a and b are equal, and loads ahead and next into the cache. Each has at most MaxBlocks words.
func equalRun(a, b *[MaxBlocks]Word, ahead, next []Word) bool {
	if !cpu.X86.HasAVX2 {
		return equalRunInTurn(a, b, ahead, next)
	}
	return equalWhileLoading(a, b, orElse(ahead, a), orElse(next, a))
}

// orElse returns the first word of words, or a word that is in the cache.
func orElse(words []Word, cached *[MaxBlocks]Word) *Word {
	if len(words) > 0 {
		return &words[0]
	}
	return &cached[0]
}

// equalWhileLoading reports whether a and b are equal. For each line that it compares it asks for a line of MaxBlocks
// words from ahead on and for one from next on. All loads at once would make the comparison wait, because a processor
// has few loads on the way. Loads beyond the words do no harm. It needs AVX2.
//
//go:noescape
func equalWhileLoading(a, b *[MaxBlocks]Word, ahead, next *Word) bool

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
