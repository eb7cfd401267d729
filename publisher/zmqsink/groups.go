package zmqsink

import (
	"github.com/blockyard-ai/blockyard/internal/engineevent"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/kvgroup"
)

// groupBlock names a block of a KV group by the block of the primary group at which it ends.
type groupBlock struct {
	hash  kv.SequenceHash
	group uint32
}

// parentBlock is the parent of a block; has is false for the first of a sequence.
type parentBlock struct {
	hash kv.SequenceHash
	has  bool
}

// groupState says in which tiers a block of a group was announced, and in which it is pending.
type groupState struct{ announced, pending kv.TierMask }

// groupEncoder has what was announced of the KV groups of a hybrid worker. It is empty for any other
// worker.
type groupEncoder struct {
	list   kvgroup.Groups
	states map[groupBlock]groupState
	// parents has the parents of the announced blocks of the primary group. Stored events of the
	// other groups name them.
	parents map[kv.SequenceHash]parentBlock
}

func newGroupEncoder(groups kvevent.Groups) groupEncoder {
	return groupEncoder{
		list: groups.List(), states: make(map[groupBlock]groupState), parents: make(map[kv.SequenceHash]parentBlock),
	}
}

func (g *groupEncoder) clear() {
	clear(g.states)
	clear(g.parents)
}

// number returns the group's number in engine events: no group for a worker without groups.
func (g *groupEncoder) number(group uint32) int32 {
	if len(g.list) == 0 {
		return engineevent.NoGroup
	}
	return int32(group)
}

// primary returns the number of the primary group in engine events.
func (g *groupEncoder) primary() int32 { return g.number(0) }

// specKinds are vLLM's names of the kinds.
var specKinds = map[kvgroup.Kind]string{
	kvgroup.Full: "full_attention", kvgroup.Sliding: "sliding_window",
	kvgroup.Chunked: "chunked_local_attention", kvgroup.State: "mamba",
}

// describe sets the fields of stored event e that say which group its blocks are of.
func (g *groupEncoder) describe(e *engineevent.Event, group uint32) {
	if int(group) >= len(g.list) {
		return
	}
	one := g.list[group]
	e.Group, e.SpecKind = int32(group), specKinds[one.Kind]
	if one.Kind == kvgroup.Sliding {
		e.SlidingWindow = one.Window
	}
}

// forget records that a block of a group left tier t. It reports whether the block had been announced
// there.
func (g *groupEncoder) forget(t kv.Tier, b groupBlock) bool {
	state := g.states[b]
	was := state.announced.Has(t)
	state.announced, state.pending = state.announced.Without(t), state.pending.Without(t)
	if state == (groupState{}) {
		delete(g.states, b)
	} else {
		g.states[b] = state
	}
	return was
}

// storeInGroup announces that block b of another group than the primary one is in tier t, unless
// that was announced before. Subscribers must know the primary group's block of the same hash, so
// that the block is pending until that is announced. A group that the worker does not have is
// ignored.
func (enc *encoder) storeInGroup(t kv.Tier, b groupBlock) {
	g := &enc.groups
	state := g.states[b]
	if int(b.group) >= len(g.list) || state.announced.Has(t) {
		return
	}
	state.pending = state.pending.With(t)
	g.states[b] = state
	parent, announced := g.parents[b.hash]
	switch {
	case !announced:
		enc.count.orphans.Add(1)
	case !enc.describe(b.hash):
		enc.count.unknownTokens.Add(1)
	default:
		enc.emitInGroup(b, parent)
	}
}

// announceGroups announces the pending blocks of other groups that have the hash of block h of the
// primary group, which was just announced. The caller has made h the scratch block.
func (enc *encoder) announceGroups(h kv.SequenceHash, parent parentBlock) {
	g := &enc.groups
	if len(g.list) == 0 {
		return
	}
	g.parents[h] = parent
	for group := 1; group < len(g.list); group++ {
		enc.emitInGroup(groupBlock{h, uint32(group)}, parent)
	}
}

// emitInGroup announces block b, whose hash is that of the scratch block, in every tier in which it
// is pending. Its event has the form that vLLM gives to the end of a prompt: the tokens of the
// last chain block, and that block's parent.
func (enc *encoder) emitInGroup(b groupBlock, parent parentBlock) {
	state := enc.groups.states[b]
	if state.pending == 0 {
		return
	}
	for _, t := range kv.Tiers {
		if !state.pending.Has(t) {
			continue
		}
		enc.makeRoom()
		e, d := enc.addEvent(kvevent.Stored, t.Medium()), &enc.described
		e.Parent, e.HasParent = kv.EngineHash(parent.hash), parent.has
		e.BlockSize, e.Eagle, e.LoRAName, e.Salt = d.BlockSize, d.Eagle, d.LoRAName, d.Salt
		enc.groups.describe(e, b.group)
		if d.Multimodal != nil {
			enc.addObjects(e)
		}
		e.BlockHashes = append(e.BlockHashes, kv.EngineHash(b.hash))
		e.Tokens = append(e.Tokens, d.Tokens...)
		enc.grew(1, 9+5*len(d.Tokens))
	}
	enc.groups.states[b] = groupState{announced: state.announced | state.pending}
}
