package consolidator

import (
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// maxGroups bounds the table of learnt groups; models have a handful.
const maxGroups = 256

// groupFilter keeps the events of the main attention's KV cache group. Hybrid
// models announce the same tokens once per group (sliding window, Mamba state),
// under hashes of their own; only the main group says how long a cached prefix
// is. Which group that is, is learnt from stored events that name a kind.
type groupFilter struct {
	main map[int32]bool
}

// accepts reports whether e is about the main group, and learns from it. Blocks
// on disk or elsewhere are not grouped and always accepted.
func (g *groupFilter) accepts(e *engineevent.Event, t kv.Tier) bool {
	if t == kv.TierDisk || t == kv.TierExternal {
		return true
	}
	if e.SpecKind != "" {
		main := isMainAttention(e.SpecKind)
		if e.Kind == kvevent.Stored && e.Group != engineevent.NoGroup {
			g.learn(e.Group, main)
		}
		return main
	}
	if e.Group == engineevent.NoGroup {
		return true
	}
	if main, learnt := g.main[e.Group]; learnt {
		return main
	}
	return e.Group == 0
}

func (g *groupFilter) learn(group int32, main bool) {
	if g.main == nil {
		g.main = make(map[int32]bool)
	}
	if _, known := g.main[group]; known || len(g.main) < maxGroups {
		g.main[group] = main
	}
}

func (g *groupFilter) reset() { clear(g.main) }

func isMainAttention(kind string) bool {
	switch kind {
	case "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}
