package join

import (
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

const (
	// documentBlocks is the length of a document. An owner holds whole documents and a part of the last one.
	documentBlocks = 250
	// One document in commonOdds is one of commonDocuments that other owners hold too.
	commonOdds, commonDocuments = 2, 4096
	blockSize                   = 16
	modelName                   = "joined"
)

// owner is the unchanging stream of an engine or a pool. It implements publisher.Source, and makes its blocks
// each time that it is asked for them.
type owner struct {
	who    kv.Owner
	tier   kv.Tier
	number uint64 // of the owner in the fleet
	blocks int
	digest uint64
}

var _ publisher.Source = (*owner)(nil)

func newOwner(who kv.Owner, tier kv.Tier, number uint64, blocks int) *owner {
	o := &owner{who: who, tier: tier, number: number, blocks: blocks}
	o.visit(func(e *kvevent.RouterEvent) {
		for i := range e.Blocks {
			o.digest += kv.Digest(e.Blocks[i].Hash, tier)
		}
	})
	return o
}

// events returns the number of events that made the owner's state.
func (o *owner) events() uint64 { return uint64((o.blocks + documentBlocks - 1) / documentBlocks) }

// visit calls f with an event for each document. The event is valid during the call.
func (o *owner) visit(f func(e *kvevent.RouterEvent)) {
	var locals []kv.LocalHash
	var sequence []kv.SequenceHash
	e := kvevent.RouterEvent{Owner: o.who, Tier: o.tier, Kind: kvevent.Stored}
	for n := range o.events() {
		document := o.number*maxBlocks + n + commonDocuments
		if n%commonOdds == 0 { // an owner holds none twice
			document = (o.number*8 + n) % commonDocuments
		}
		e.ID = n + 1
		length := min(documentBlocks, o.blocks-int(n)*documentBlocks)
		locals = locals[:0]
		for i := range length {
			locals = append(locals, kv.LocalHash(mixed(document<<20+uint64(i))))
		}
		sequence = kv.AppendSequence(sequence[:0], locals)
		e.Blocks = e.Blocks[:0]
		for i := range locals {
			e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: sequence[i], Local: locals[i]})
		}
		f(&e)
	}
}

// Owner implements publisher.Source.
func (o *owner) Owner() kv.Owner { return o.who }

// Status implements publisher.Source.
func (o *owner) Status() publisher.Status {
	return publisher.Status{LastEventID: o.events(), Digest: o.digest, Blocks: uint64(o.blocks), Health: kvevent.HealthExact}
}

// Snapshot implements publisher.Source.
func (o *owner) Snapshot() (events []kvevent.RouterEvent, last, digest uint64) {
	o.visit(func(e *kvevent.RouterEvent) {
		kept := *e
		kept.Blocks = append([]kvevent.StoredBlock(nil), e.Blocks...)
		events = append(events, kept)
	})
	return events, o.events(), o.digest
}

// mixed spreads a number over 64 bits (splitmix64).
func mixed(n uint64) uint64 {
	n += 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}
