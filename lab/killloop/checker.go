package killloop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/blockyard-ai/blockyard/internal/proto"
)

// patience bounds the way of a block from disk. A block that takes longer is lost.
const patience = 30 * time.Second

// check is the main function of a checker process: it looks up the wanted blocks, document by
// document, and compares every byte of those that it finds. It writes what it found and lost to
// out as notes. When the agent dies it ends without an error and notes nothing about the rest.
func check(ctx context.Context, o orders, out io.Writer) error {
	for space := range spaces { // each namespace needs a session of its own
		c := checker{space: space, notes: newNoteWriter(out, space)}
		var err error
		if c.link, err = dial(ctx, &o, space, o.Worker+uint64(space)); err != nil {
			return err
		}
		for _, w := range o.Wanted {
			if w.Space == space && err == nil {
				err = c.document(ctx, w)
			}
		}
		c.close()
		switch {
		case errors.Is(err, proto.ErrDisconnected):
			return nil
		case err != nil:
			return err
		}
		if err := c.notes.failed(); err != nil {
			return err
		}
	}
	return nil
}

// checker is a session in one namespace.
type checker struct {
	link
	space   int
	notes   *noteWriter
	request uint64
}

// document looks up the wanted blocks of one document, which is the prompt of one request. The
// error is ErrDisconnected when the agent died.
func (c *checker) document(ctx context.Context, w wanted) error {
	c.request++
	id := proto.RequestID{ID: c.request}
	if err := c.sched.Open(id, "", "", "", w.Doc.tokens()); err != nil {
		return c.gone(err)
	}
	for _, r := range runs(w.Blocks) {
		if err := c.run(ctx, id, w.Doc, r); err != nil {
			return c.gone(err)
		}
	}
	return c.gone(c.sched.CloseRequest(id))
}

// gone returns err of a call to the agent as it is when the agent refused or did not answer. Any
// other error means that the agent died, and gone wraps it in ErrDisconnected.
func (c *checker) gone(err error) error {
	if err == nil {
		return nil
	}
	var refused *proto.RefusedError
	if errors.As(err, &refused) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", proto.ErrDisconnected, err)
}

// blockRun is a range of blocks.
type blockRun struct{ first, count int }

// runs returns the ranges of consecutive numbers in blocks, which are in ascending order.
func runs(blocks []uint32) []blockRun {
	var all []blockRun
	for _, b := range blocks {
		if n := len(all); n > 0 && all[n-1].first+all[n-1].count == int(b) {
			all[n-1].count++
			continue
		}
		all = append(all, blockRun{int(b), 1})
	}
	return all
}

// run looks up the blocks of range r of a document and compares their bytes. LOOKUP finds the blocks
// up to the first one that the agent does not have: run notes that block as lost for the ledger,
// and goes on after it.
func (c *checker) run(ctx context.Context, id proto.RequestID, doc docID, r blockRun) error {
	for r.count > 0 {
		slots, err := c.lookup(ctx, id, r)
		if err != nil {
			return err
		}
		n := len(slots)
		if n == 0 {
			c.notes.put(note{Kind: noteLost, Doc: doc, Blocks: []uint32{uint32(r.first)}})
			n = 1
		} else if err := c.read(ctx, id, doc, r.first, slots); err != nil {
			return err
		}
		r = blockRun{r.first + n, r.count - n}
	}
	return nil
}

// lookup returns the pinned slots of the first blocks of the range, none when the first block is
// not there. It waits for blocks that the agent is reading from disk.
func (c *checker) lookup(ctx context.Context, id proto.RequestID, r blockRun) ([]proto.Slot, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		hit, err := c.sched.Lookup(ctx, id, r.first, r.count, time.Second)
		if err != nil || hit.Ready > 0 || hit.Coming == 0 {
			return hit.Slots, err
		}
	}
}

// read compares every byte of the pinned slots with the document's content, and writes notes for
// the ledger: wrong bytes as a fault, and the blocks that it found. slots[0] has block number
// first of the document. The error says that the agent is dead.
func (c *checker) read(ctx context.Context, id proto.RequestID, doc docID, first int, slots []proto.Slot) error {
	ns := namespaceOf(c.space)
	keys := doc.keys(ns.ID())
	found := note{Kind: noteFound, Doc: doc}
	for i, slot := range slots {
		block := first + i
		bytes, err := readSlot(ctx, &c.link, slot, 0)
		switch {
		case errors.Is(err, errMoved):
			// Nothing takes a pinned slot while the agent lives, nor afterwards while we do.
			c.notes.fault(faultPin, 1, "%+v of document %#x", slot, uint64(doc))
			continue
		case err != nil:
			return err
		}
		c.notes.fault(faultWrong, contentOf(keys[block]).wrong(bytes, 0), "block %d of document %#x in %+v", block, uint64(doc), slot)
		found.Blocks = append(found.Blocks, uint32(block))
	}
	c.notes.put(found)
	return nil
}
