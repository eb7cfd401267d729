package policy

import (
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
)

// Evictor orders the slots of one tier that may be evicted now. A tier places only blocks
// without children, and a parent when its last child has left, so that children are
// evicted before their parents in any order. The pool's lock guards an Evictor.
type Evictor interface {
	// AddExtent makes room for slots 0 to slots-1 of a new extent. It must precede their
	// Place.
	AddExtent(extent, slots uint32)
	// RemoveExtent forgets an extent, none of whose slots is in the order. Its number
	// may be added again.
	RemoveExtent(extent uint32)
	// SetLevel sets how many ticks a level of priority adds in every later Place; 0 before
	// the first SetLevel. A priority adds at most 2^62 ticks.
	SetLevel(ticks uint64)
	// Place adds ref to the order, or moves it, by priority and tick. tick is the last use
	// of the block. A block is ordered as if it had been used priority levels later than at
	// tick.
	Place(ref registry.Ref, priority uint32, tick uint64)
	// Remove removes ref from the order. It does nothing when ref is not in the order.
	Remove(ref registry.Ref)
	// Victim returns the slot to evict first. The slot stays in the order. ok is false when
	// the order is empty.
	Victim() (ref registry.Ref, ok bool)
	// Enter tells that slot ref has a block from now on, a child of the block in slot parent, which
	// is NoRef for none in this tier. hash names the block. Leave tells that the block has left, and Hit that it was
	// asked for again.
	Enter(ref, parent registry.Ref, hash uint64)
	Leave(ref registry.Ref)
	Hit(ref registry.Ref)
	// Len returns the number of slots in the order.
	Len() int
}

var (
	_ Evictor = (*LeafLRU)(nil)
	_ Evictor = (*TinyLFU)(nil)
	_ Evictor = (*Adaptive)(nil)
)

// Rule names an Evictor.
type Rule uint8

const (
	// RuleLRU is LeafLRU: what was used last stays. Choose it for the least memory, 4 bytes a slot.
	RuleLRU Rule = iota
	// RuleAdaptive is Adaptive: like RuleLRU, and what is asked for often stays when scans or cycles come
	// that are larger than the tier. It takes 50 to 70 bytes a slot.
	RuleAdaptive
	// AgentRule is the rule of an agent without --host-eviction and --disk-eviction.
	AgentRule = RuleAdaptive
)

// RuleNames are the names of the rules, in their order.
var RuleNames = []string{"lru", "adaptive"}

// RuleOf returns the rule of a name; ok is false for none.
func RuleOf(name string) (r Rule, ok bool) {
	at := slices.Index(RuleNames, name)
	return Rule(max(0, at)), at >= 0
}

// String returns the name of the rule.
func (r Rule) String() string {
	if int(r) < len(RuleNames) {
		return RuleNames[r]
	}
	return fmt.Sprintf("rule(%d)", uint8(r))
}

// New returns an Evictor without extents.
func (r Rule) New() Evictor {
	if r == RuleAdaptive {
		return NewAdaptive()
	}
	return NewLeafLRU()
}
