package stress

import (
	"errors"
	"fmt"

	"github.com/blockyard-ai/blockyard/blockmgr"
)

// maxHandles is how many blocks a registration stores at most.
const maxHandles = 2

// register stores blocks through handles, as a program that embeds the manager
// does, and checks what the handles show. Blocks that are there already keep their
// bytes.
func (w *world) register(c *client, pool *blockmgr.Pool, o *operation) error {
	run := w.spaces[c.space].run(o)
	run = run[:min(len(run), maxHandles)]
	blocks, err := pool.Allocate(c.session, len(run))
	if errors.Is(err, blockmgr.ErrNotEnoughBlocks) {
		return nil
	}
	if err != nil {
		return err
	}
	nonce := uint64(w.at) << 8
	for i, b := range blocks {
		if err := w.exclusive(b.Slot()); err != nil {
			return err
		}
		tokens := make([]uint32, w.spaces[c.space].desc.BlockSize)
		if err := b.ApplyTokenBlock(blockmgr.TokenBlock{Block: run[i], Tokens: tokens}); err != nil {
			return err
		}
		fill(b.Data(), run[i].Key, nonce)
	}
	w.ledger.offer(w.spaces[c.space].id, run, nonce)
	handles, err := pool.Register(c.session, blocks)
	w.ledger.offerEnds()
	if errors.Is(err, blockmgr.ErrFilling) {
		for _, b := range blocks {
			b.Release()
		}
		return nil
	}
	if err != nil {
		return err
	}
	for i, h := range handles {
		if h.Key() != run[i].Key {
			return fmt.Errorf("block %s was registered, the handle is of %s", run[i].Key, h.Key())
		}
		if _, err := w.served(c.space, pool, &run[i], h.Slot()); err != nil {
			return err
		}
		h.Release()
	}
	return nil
}
