package mirror

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// learner finds the KV groups of an engine in the engine's stored events, which name the number,
// kind, window and block size of their group. Events of a group come with the group's first cached
// block. So the groups are known when no number below the highest one is missing. Until then the
// mirror keeps the blocks of the primary group alone, and is degraded.
type learner struct {
	groups map[int32]kvgroup.Group // by the engine's numbers
	// partial: the engine has groups that the stream does not have.
	partial bool
	// dropped: blocks of such groups were announced.
	dropped bool
}

func (l *learner) reset() { *l = learner{} }

// learnGroups reads the groups in the events of b, before b is applied, and makes the mirror keep the
// blocks of all groups when they are known. It does nothing without Config.Learned.
func (c *Cache) learnGroups(b *engineevent.Batch) {
	if c.cfg.Learned == nil || b.HasRank && b.Rank != c.cfg.Rank {
		return
	}
	l, changed := &c.learner, false
	before := l.primary()
	for i := range b.Events {
		if e := &b.Events[i]; e.Kind == kvevent.Stored && e.Group != engineevent.NoGroup && e.SpecKind != "" && e.BlockSize > 0 {
			changed = l.add(e) || changed
		}
	}
	if !changed {
		return
	}
	if before >= 0 && before != l.primary() {
		c.Lost() // the known blocks are those of another group
	}
	groups, problem := l.known(uint32(c.cfg.BlockSize))
	if problem == "" && len(groups) > 1 {
		c.sparse.engine = groups
		_, c.sparse.numbers = kvevent.NewGroups(groups)
	}
	l.partial = l.others() && len(groups) != len(l.groups)
	if l.dropped && !l.partial {
		c.degraded, l.dropped = true, false // the engine has blocks that the stream lacks
	}
	c.cfg.Learned(c.sparse.engine, problem)
}

// add learns the group of a stored event. It returns false when the event tells nothing new.
func (l *learner) add(e *engineevent.Event) (changed bool) {
	g := groupOfEvent(e)
	old, known := l.groups[e.Group]
	if known && old.Kind == g.Kind && old.Window == g.Window && g.BlockSize <= old.BlockSize {
		// The state at the end of a prompt may come with a smaller size than the group's blocks.
		return false
	}
	if !known && len(l.groups) >= kvgroup.MaxGroups {
		return false
	}
	if l.groups == nil {
		l.groups = make(map[int32]kvgroup.Group)
	}
	l.groups[e.Group] = g
	return true
}

// groupOfEvent returns the group that a stored event describes. The kind is the engine's word, which
// is no valid kind, for a group whose part in a prefix the event does not tell.
func groupOfEvent(e *engineevent.Event) kvgroup.Group {
	g := kvgroup.Group{Kind: kvgroup.Kind(e.SpecKind), BlockSize: e.BlockSize}
	switch e.SpecKind {
	case "sliding_window", "sliding_window_mla":
		if e.SlidingWindow > 0 {
			g.Kind, g.Window = kvgroup.Sliding, e.SlidingWindow
		}
	case "mamba":
		g.Kind = kvgroup.State
	default:
		if isMainAttention(e.SpecKind) {
			g.Kind = kvgroup.Full
		}
	}
	return g
}

// primary returns the engine's number of the first group of full attention, or -1.
func (l *learner) primary() int32 {
	first := int32(-1)
	for number, g := range l.groups {
		if g.Kind == kvgroup.Full && (first < 0 || number < first) {
			first = number
		}
	}
	return first
}

// others reports whether the engine has a group beside the primary one.
func (l *learner) others() bool {
	_, first := l.groups[0]
	return len(l.groups) > 1 || len(l.groups) == 1 && (!first || l.primary() < 0)
}

// known returns the groups by the engine's numbers if all are known, and nil otherwise. problem says
// why they will never be known; it is empty while a number is missing. page is the tokens of a block
// of the stream.
func (l *learner) known(page uint32) (groups kvgroup.Groups, problem string) {
	for number := range int32(len(l.groups)) {
		g, ok := l.groups[number]
		if !ok {
			return nil, ""
		}
		groups = append(groups, g)
	}
	if len(groups) == 1 && groups[0].Kind == kvgroup.Full {
		return groups, ""
	}
	primary := groups.Primary()
	if primary < 0 {
		return nil, ""
	}
	if err := groups.Validate(page); err != nil {
		return nil, err.Error()
	}
	if size := groups[primary].BlockSize; size != page {
		return nil, fmt.Sprintf("groups[%d] block_size: %d tokens, want %d as the router's blocks have", primary, size, page)
	}
	return groups, ""
}

// acceptsUnlearnt reports whether an event is about the primary group, while the groups are not
// known. Events without a number, and about blocks on disk or elsewhere, are always accepted.
func (l *learner) acceptsUnlearnt(e *engineevent.Event, t kv.Tier) bool {
	if t == kv.TierDisk || t == kv.TierExternal || e.Group == engineevent.NoGroup {
		return true
	}
	ok := e.Group == 0 && (e.SpecKind == "" || isMainAttention(e.SpecKind))
	if len(l.groups) > 0 {
		ok = e.Group == l.primary()
	}
	l.dropped = l.dropped || !ok && e.Kind == kvevent.Stored
	return ok
}
