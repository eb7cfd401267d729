package groups

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// Model is the KV groups of a worker by their numbers in events, and the tokens of a block of the
// primary group.
type Model struct {
	Groups kvgroup.Groups
	Page   uint32
}

// Fit returns how many leading blocks of a prompt all groups of an owner can serve. sequence are the
// hashes of the prompt's blocks. The owner holds the first primary blocks of the primary group.
// maxTokens bounds the prefix unless it is 0.
func (t *Table) Fit(m *Model, sequence []kv.SequenceHash, primary uint32, maxTokens int, owner uint32) uint32 {
	limit := uint64(primary) * uint64(m.Page)
	if maxTokens > 0 {
		limit = min(limit, uint64(maxTokens))
	}
	tokens := m.Groups.Fit(uint32(min(limit, 1<<31)), 0, m.Page, func(group int, at uint32) bool {
		if group == 0 || int(at) >= len(sequence) {
			return at < primary
		}
		return t.Holds(Block{Hash: sequence[at], Group: uint32(group)}, owner)
	})
	return tokens / m.Page
}
