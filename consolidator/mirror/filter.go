package mirror

import (
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

// filter returns the tier of a stored or removed event, and the number of its KV group in events. ok
// is false when the event must not be applied; reason says why: the event is not about blocks of
// this rank or of a group that the mirror knows, or it is malformed.
func (c *Cache) filter(e *engineevent.Event) (tier kv.Tier, group uint32, reason dropReason, ok bool) {
	switch e.Locality {
	case "", "LOCAL":
	case "REMOTE":
		return 0, 0, dropRemote, false
	default:
		return 0, 0, dropUnknownLocality, false
	}
	if tier, ok = kv.TierFromMedium(e.Medium); !ok {
		return 0, 0, dropUnknownMedium, false
	}
	switch {
	case c.sparse.configured():
		group, ok = c.sparse.groupOf(e)
	case c.cfg.Learned != nil:
		ok = c.learner.acceptsUnlearnt(e, tier)
	default:
		ok = c.groups.accepts(e, tier)
	}
	if !ok {
		return 0, 0, dropGroup, false
	}
	c.lowerTiers = c.lowerTiers || tier != kv.TierDevice // no list can repair these tiers
	if e.Kind == kvevent.Stored {
		reason, bad := c.malformed(e)
		if group != 0 {
			reason, bad = c.malformedSparse(e, group)
		}
		if bad {
			return 0, 0, reason, false
		}
	}
	return tier, group, 0, true
}

// malformed returns true when a stored event contradicts itself or the configured block size; the
// reason says how.
func (c *Cache) malformed(e *engineevent.Event) (dropReason, bool) {
	n := len(e.BlockHashes)
	want := n * c.cfg.BlockSize
	if e.Eagle { // pairs of tokens that overlap have one token more
		want++
	}
	switch {
	case len(e.Tokens) == 0 && e.BlockSize == 0:
		return dropPlaceholder, true
	case int64(e.BlockSize) != int64(c.cfg.BlockSize):
		return dropBlockSize, true
	case len(e.Tokens) != want, e.Multimodal != nil && len(e.Multimodal) != n:
		return dropTokenCount, true
	case e.LoRAID != 0 && e.LoRAName == "":
		// Hashed without a name they would be the base model's blocks.
		return dropUnnamedLoRA, true
	}
	return 0, false
}

// blockObjects returns the hashes of the multimodal objects in block i of e; nil: none.
func blockObjects(e *engineevent.Event, i int) []uint64 {
	if e.Multimodal == nil {
		return nil
	}
	return e.Multimodal[i]
}

// maxGroups bounds the table of learnt groups; models have a handful.
const maxGroups = 256

// groupFilter accepts the events of the main attention's KV cache group. Hybrid
// models announce the same tokens once per group (sliding window, Mamba state), under
// different hashes. Only the main group says how long a cached prefix is. Stored events
// with an attention kind tell which group is the main one.
type groupFilter struct {
	main map[int32]bool // by group number; true: the main group
}

// accepts reports whether e is about the main group: the engine's KV cache group of full
// attention. The other groups (sliding window, Mamba state) announce the same tokens again,
// under other hashes. A stored event that names an attention kind teaches whether the event's
// group is the main one. An unknown group is the main one if its number is 0. Events without a
// group, and about blocks on disk or elsewhere, are always accepted.
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

// learn records whether a group is the main one. A full table ignores further groups.
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
