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
	if p.host != nil {
		defer p.wakeGrowerLocked()
	}
	if can := p.obtainableLocked(p.host, n); can < n {
		return nil, notEnough(n, can)
	}
	blocks := make([]*MutableBlock, 0, n)
	for range n {
		ref := p.allocLocked(p.host)
		if ref == registry.NoRef {
			// A slot that was to be freed had damaged memory.
			for _, b := range blocks {
				ref, _ := b.heldLocked()
				delete(sess.granted, ref)
				p.freeLocked(p.host, ref)
			}
			return nil, notEnough(n, len(blocks))
		}
		p.grantBlankLocked(s, sess, ref)
		blocks = append(blocks, &MutableBlock{pool: p, session: s, sess: sess, slot: p.host.name(ref)})
	}
	p.count.Granted += uint64(n)
	return blocks, nil
}

func notEnough(requested, available int) error {
	return fmt.Errorf("%d blocks requested, %d available: %w", requested, available, ErrNotEnoughBlocks)
}

// grantBlankLocked grants a free slot without saying for which block.
func (p *Pool) grantBlankLocked(s SessionID, sess *session, ref registry.Ref) {
	sl := p.host.slot(ref)
	sl.session, sl.tick = s, p.clock
	p.host.setState(sl, storage.StateGranted)
	p.host.put(ref, storage.Record{})
	sess.grant(ref, time.Now())
}

// obtainableLocked is how many slots of the host tier can be had, evicting where they
// are not free and the tier does not grow. It is exact where it is less than want.
func (p *Pool) obtainableLocked(t *tier, want int) int {
	if t == nil {
		return 0
	}
	if free := t.free(); free < want && p.hostGrowsLocked() {
		p.growth.refused += want - free
		return free
	}
	if n := t.free() + t.order.Len(); n >= want {
		return n
	}
	// A block can go once its children in the tier have gone: all but those in use
	// and what comes before them.
	blocks, stays := 0, map[registry.ID]struct{}{}
	t.each(func(_ registry.Ref, s *slot) {
		if s.entry == registry.None {
			return
		}
		blocks++
		if s.state == storage.StateSealed && s.pins+s.holds == 0 {
			return
		}
		for id := s.entry; id != registry.None; id = p.reg.At(id).Parent {
			if _, known := stays[id]; known || p.reg.At(id).Slots[t.level] == registry.NoRef {
				return
			}
			stays[id] = struct{}{}
		}
	})
	return t.free() + blocks - len(stays)
}
