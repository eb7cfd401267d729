package kvbm

import (
	"github.com/blockyard-ai/blockyard/blockmgr"
	"github.com/blockyard-ai/blockyard/blockmgr/config"
	"github.com/blockyard-ai/blockyard/internal/kv"
)

// sink tells an EventManager what the pool reports. It is called under the pool's
// lock, so that nothing overtakes anything.
type sink struct{ to config.EventManager }

// BlockStored implements blockmgr.EventSink.
func (s sink) BlockStored(_ kv.NamespaceID, t kv.Tier, b blockmgr.Block) {
	parent, hasParent := b.ParentSeq, b.Position > 0
	if !hasParent {
		parent = 0
	}
	s.to.BlockStored(t, b.Seq, parent, hasParent)
}

// BlockRemoved implements blockmgr.EventSink.
func (s sink) BlockRemoved(_ kv.NamespaceID, t kv.Tier, b blockmgr.Block) {
	s.to.BlockRemoved(t, b.Seq)
}
