package blockmgr

import (
	"fmt"
	"time"

	"github.com/blockyard-ai/blockyard/blockmgr/registry"
	"github.com/blockyard-ai/blockyard/blockmgr/storage"
)

// Allocate gives session s n empty blocks, for which the coldest blocks leave where
// slots are short and the host tier cannot grow. Either all n can be had or
// nothing happens (ErrNotEnoughBlocks), for one because the tier has yet to grow. The slots are on record as the
// session's before Allocate returns.
//
// A call that needs more slots than there are free ones and blocks without
// children looks at every slot of the host tier.
func (p *Pool) Allocate(s SessionID, n int) ([]*MutableBlock, error) {
	if n < 0 {
		return nil, fmt.Errorf("number of blocks %d: want 0 or more", n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	sess, err := p.checkLocked(s)
	if err != nil {
		return nil, err
	}
	p.tickLocked()
	if p.slots.Host != nil {
		defer p.wakeGrowerLocked()
	}
	if can := p.obtainableLocked(n); can < n {
		return nil, notEnough(n, can)
	}
	blocks := make([]*MutableBlock, 0, n)
	for range n {
		ref := p.allocLocked(p.slots.Host)
		if ref == registry.NoRef {
			// A slot that was to be freed had damaged memory.
			for _, b := range blocks {
				ref, _ := b.heldLocked()
				delete(sess.granted, ref)
				p.slots.Free(p.slots.Host, ref)
			}
			return nil, notEnough(n, len(blocks))
		}
		p.grantBlankLocked(s, sess, ref)
		blocks = append(blocks, &MutableBlock{pool: p, session: s, sess: sess, slot: p.slots.Host.Name(ref)})
	}
	p.count.Granted += uint64(n)
	return blocks, nil
}

func notEnough(requested, available int) error {
	return fmt.Errorf("%d blocks requested, %d available: %w", requested, available, ErrNotEnoughBlocks)
}

// grantBlankLocked grants a free slot without saying for which block.
func (p *Pool) grantBlankLocked(s SessionID, sess *session, ref registry.Ref) {
	p.slots.Grant(ref, s, storage.Record{})
	sess.grant(ref, time.Now())
}

// obtainableLocked is how many host slots can be had. A tier that can grow evicts
// nothing, so that only its free slots count. It is exact where it is less than want.
func (p *Pool) obtainableLocked(want int) int {
	t := p.slots.Host
	if t == nil {
		return 0
	}
	if free := t.Free(); free < want && p.hostGrowsLocked() {
		p.growth.refused += want - free
		return free
	}
	return p.slots.Obtainable(t, want)
}
