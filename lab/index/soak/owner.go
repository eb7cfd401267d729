package soak

import (
	"fmt"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/lab/index/loggen"
	"github.com/blockyard-ai/blockyard/router/index"
)

// owner is an engine or a pool with the account of the events that the index got. As a
// loggen.Sink it passes changes on. It is for one goroutine.
type owner struct {
	name   kv.Owner
	pool   uint64 // of a worker
	tier   kv.Tier
	engine *loggen.Engine
	index  *index.Index

	lastID uint64
	// digest and pairs are the owner's blocks by that account.
	digest, pairs uint64
	// blocks counts stored and removed blocks.
	blocks uint64
}

// next returns the owner's next event.
func (o *owner) next(kind kvevent.Kind) kvevent.RouterEvent {
	o.lastID++
	return kvevent.RouterEvent{Owner: o.name, Tier: o.tier, ID: o.lastID, Kind: kind}
}

// Stored implements loggen.Sink: it applies the change to the index, and adds it to what the
// owner must hold.
func (o *owner) Stored(parent kv.SequenceHash, blocks []kvevent.StoredBlock) error {
	e := o.next(kvevent.Stored)
	e.Blocks, e.Parent, e.HasParent = blocks, parent, parent != 0
	for _, b := range blocks {
		o.digest += kv.Digest(b.Hash, o.tier)
	}
	o.pairs += uint64(len(blocks))
	o.blocks += uint64(len(blocks))
	return o.index.Apply(&e)
}

// Removed implements loggen.Sink: it applies the change to the index, and takes it off the
// owner's own account.
func (o *owner) Removed(hashes []kv.SequenceHash) error {
	e := o.next(kvevent.Removed)
	e.Removed = hashes
	for _, h := range hashes {
		o.digest -= kv.Digest(h, o.tier)
	}
	o.pairs -= uint64(len(hashes))
	o.blocks += uint64(len(hashes))
	return o.index.Apply(&e)
}

// clear removes all blocks.
func (o *owner) clear() error {
	o.engine.Reset()
	o.digest, o.pairs = 0, 0
	e := o.next(kvevent.Cleared)
	return o.index.Apply(&e)
}

// dump is a loggen.Sink that keeps stored blocks as events.
type dump struct {
	owner  *owner
	events []kvevent.RouterEvent
}

// Stored implements loggen.Sink.
func (d *dump) Stored(parent kv.SequenceHash, blocks []kvevent.StoredBlock) error {
	e := d.owner.next(kvevent.Stored)
	e.Blocks, e.Parent, e.HasParent = append([]kvevent.StoredBlock(nil), blocks...), parent, parent != 0
	d.events = append(d.events, e)
	return nil
}

// Removed implements loggen.Sink; dumps remove nothing.
func (d *dump) Removed([]kv.SequenceHash) error { panic("BUG: a dump removes blocks") }

// replace replaces the owner's blocks in the index by a dump of the owner.
func (o *owner) replace() error {
	d := dump{owner: o}
	if err := o.engine.Dump(&d); err != nil {
		return err
	}
	return o.index.Replace(o.name, d.events)
}

// check returns an error when the index does not have exactly the blocks of the owner's account,
// by digest and number.
func (o *owner) check() error {
	sum, pairs := o.index.Digest(o.name)
	if sum != o.digest || pairs != o.pairs || int(pairs) != o.engine.Held() {
		return fmt.Errorf("%s: the index has digest %#x of %d blocks, it was told %#x of %d, and %d are held",
			o.name, sum, pairs, o.digest, o.pairs, o.engine.Held())
	}
	return nil
}
