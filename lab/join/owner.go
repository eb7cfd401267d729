package join

import (
	"sync"

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

// sink takes events, as publisher.Feed does.
type sink interface {
	Publish(events []kvevent.RouterEvent)
}

// owner is the stream of an engine or a pool. It implements publisher.Source, and makes its blocks
// each time that it is asked for them. It is safe for concurrent use once sink is set.
type owner struct {
	who    kv.Owner
	tier   kv.Tier
	number uint64 // of the owner in the fleet
	blocks int
	sink   sink // of replace; nil takes no events

	mu     sync.Mutex
	first  uint64 // number of the owner's oldest document, and of the documents that were replaced
	digest uint64
}

var _ publisher.Source = (*owner)(nil)

// newOwner returns an owner that has replaced some of its documents.
func newOwner(who kv.Owner, tier kv.Tier, number uint64, blocks int, replaced uint64) *owner {
	o := &owner{who: who, tier: tier, number: number, blocks: blocks, first: replaced}
	o.visit(func(e *kvevent.RouterEvent) { o.digest += digestOf(e.Blocks, tier) })
	return o
}

func digestOf(blocks []kvevent.StoredBlock, tier kv.Tier) (sum uint64) {
	for i := range blocks {
		sum += kv.Digest(blocks[i].Hash, tier)
	}
	return sum
}

// documents returns the number of documents that the owner holds.
func (o *owner) documents() uint64 { return uint64((o.blocks + documentBlocks - 1) / documentBlocks) }

// last returns the id of the owner's last event: one for each document, and two for each replaced one.
func (o *owner) last() uint64 { return o.documents() + 2*o.first }

// document returns the blocks of document n of the owner. Documents that replace one another are equally long.
func (o *owner) document(n uint64) []kvevent.StoredBlock {
	id := o.number*maxBlocks + n + commonDocuments
	if n%commonOdds == 0 { // an owner holds none twice
		id = (o.number*8 + n) % commonDocuments
	}
	length := min(documentBlocks, o.blocks-int(n%o.documents())*documentBlocks)
	locals := make([]kv.LocalHash, length)
	for i := range locals {
		locals[i] = kv.LocalHash(mixed(id<<20 + uint64(i)))
	}
	blocks := make([]kvevent.StoredBlock, length)
	for i, h := range kv.AppendSequence(nil, locals) {
		blocks[i] = kvevent.StoredBlock{Hash: h, Local: locals[i]}
	}
	return blocks
}

// visit calls f with a stored event for each document, numbered from 1.
func (o *owner) visit(f func(e *kvevent.RouterEvent)) {
	for n := range o.documents() {
		f(&kvevent.RouterEvent{Owner: o.who, Tier: o.tier, Kind: kvevent.Stored, ID: n + 1, Blocks: o.document(o.first + n)})
	}
}

// replace removes the oldest document and stores another one: two events.
func (o *owner) replace() {
	o.mu.Lock()
	defer o.mu.Unlock()
	old, stored := o.document(o.first), o.document(o.first+o.documents())
	removed := kvevent.RouterEvent{Owner: o.who, Tier: o.tier, Kind: kvevent.Removed, ID: o.last() + 1}
	for i := range old {
		removed.Removed = append(removed.Removed, old[i].Hash)
	}
	o.first++
	o.digest += digestOf(stored, o.tier) - digestOf(old, o.tier)
	o.sink.Publish([]kvevent.RouterEvent{removed, {Owner: o.who, Tier: o.tier, Kind: kvevent.Stored, ID: o.last(), Blocks: stored}})
}

// Owner implements publisher.Source.
func (o *owner) Owner() kv.Owner { return o.who }

// Status implements publisher.Source.
func (o *owner) Status() publisher.Status {
	o.mu.Lock()
	defer o.mu.Unlock()
	return publisher.Status{LastEventID: o.last(), Digest: o.digest, Blocks: uint64(o.blocks), Health: kvevent.HealthExact}
}

// Snapshot implements publisher.Source.
func (o *owner) Snapshot() (events []kvevent.RouterEvent, last, digest uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.visit(func(e *kvevent.RouterEvent) { events = append(events, *e) })
	return events, o.last(), o.digest
}

// mixed spreads a number over 64 bits (splitmix64).
func mixed(n uint64) uint64 {
	n += 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}
