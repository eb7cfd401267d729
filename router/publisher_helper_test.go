package router

import (
	"slices"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
)

const testBlockSize = 4

// testPublisher is a publisher that loses nothing: it keeps every event, knows
// what its owner holds, and answers any query.
type testPublisher struct {
	meta kvevent.Announcement

	mu       sync.Mutex
	events   []kvevent.RouterEvent
	held     map[heldBlock]bool
	places   map[kv.SequenceHash]kvevent.RouterEvent // the store of each block alone
	sequence uint64
}

type heldBlock struct {
	hash kv.SequenceHash
	tier kv.Tier
}

func newTestPublisher(id uint64, owner kv.Owner, pool uint64) *testPublisher {
	return &testPublisher{
		held: make(map[heldBlock]bool), places: make(map[kv.SequenceHash]kvevent.RouterEvent),
		meta: kvevent.Announcement{PublisherID: id, Owner: owner, Pool: pool, Model: "m",
			BlockSize: testBlockSize, Health: kvevent.HealthExact},
	}
}

// promptTokens are the tokens of a prompt whose n-th block is made of ids[n].
func promptTokens(ids ...uint32) []uint32 {
	var tokens []uint32
	for _, id := range ids {
		for i := range uint32(testBlockSize) {
			tokens = append(tokens, id*100+i)
		}
	}
	return tokens
}

// add makes an event that stores or removes the blocks of tokens from block
// first on, and returns the message that publishes it.
func (p *testPublisher) add(kind kvevent.Kind, t kv.Tier, tokens []uint32, first int) []byte {
	var h kv.Hasher
	locals := h.AppendLocals(nil, tokens, testBlockSize, kv.LocalSeed("", ""))
	seq := kv.AppendSequence(nil, locals)
	p.mu.Lock()
	defer p.mu.Unlock()
	e := kvevent.RouterEvent{Owner: p.meta.Owner, Tier: t, Kind: kind, ID: uint64(len(p.events) + 1)}
	if first > 0 {
		e.Parent, e.HasParent = seq[first-1], true
	}
	for i := first; i < len(seq); i++ {
		if kind == kvevent.Stored {
			e.Blocks = append(e.Blocks, kvevent.StoredBlock{Hash: seq[i], Local: locals[i]})
			p.places[seq[i]] = kvevent.RouterEvent{Parent: seq[max(0, i-1)], HasParent: i > 0, Blocks: e.Blocks[i-first:]}
			p.held[heldBlock{seq[i], t}] = true
		} else {
			e.Removed = append(e.Removed, seq[i])
			delete(p.held, heldBlock{seq[i], t})
		}
	}
	p.events = append(p.events, e)
	p.sequence++
	return kvevent.AppendEnvelope(nil, &kvevent.Envelope{PublisherID: p.meta.PublisherID,
		Sequence: p.sequence, Topic: kvevent.Topic, Events: []kvevent.RouterEvent{e}})
}

func (p *testPublisher) store(t kv.Tier, tokens []uint32) Frame {
	return Frame{Kind: FrameEvents, Data: p.add(kvevent.Stored, t, tokens, 0)}
}

// drift changes what the publisher holds without telling anybody.
func (p *testPublisher) drift(h kv.SequenceHash) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[heldBlock{h, kv.TierDevice}] = true
	p.places[h] = kvevent.RouterEvent{Blocks: []kvevent.StoredBlock{{Hash: h, Local: kv.LocalHash(h)}}}
}

func (p *testPublisher) announcement() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.meta
	a.LastEventID, a.Blocks = uint64(len(p.events)), uint64(len(p.held))
	for b := range p.held {
		a.Digest += kv.Digest(b.hash, b.tier)
	}
	return kvevent.AppendAnnouncement(nil, &a)
}

func (p *testPublisher) announce() Frame {
	return Frame{Kind: FrameAnnouncement, Data: p.announcement()}
}

// goodbye is the last announcement.
func (p *testPublisher) goodbye() Frame {
	a := p.meta
	a.Health = kvevent.HealthGone
	return Frame{Kind: FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)}
}

// answer gives the events asked for, or everything as one event per block.
func (p *testPublisher) answer(q kvevent.QueryRequest) *Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := uint64(len(p.events))
	if q.HasStart {
		return &Answer{Kind: kvevent.QueryEvents, LastEventID: last, Events: slices.Clone(p.events[min(q.StartID-1, last):])}
	}
	a := &Answer{Kind: kvevent.QueryTreeDump, LastEventID: last}
	for b := range p.held {
		e := p.places[b.hash]
		e.Owner, e.Tier, e.Kind, e.ID = p.meta.Owner, b.tier, kvevent.Stored, uint64(len(a.Events))
		a.Events = append(a.Events, e)
	}
	return a
}

func workerOwner(id uint64) kv.Owner { return kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(id)}) }

// of makes a publisher one of a model.
func (p *testPublisher) of(model string, blockSize uint32) *testPublisher {
	p.meta.Model, p.meta.BlockSize = model, blockSize
	return p
}

// clear makes an event after which the owner holds nothing.
func (p *testPublisher) clear() Frame {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.held)
	e := kvevent.RouterEvent{Owner: p.meta.Owner, Kind: kvevent.Cleared, ID: uint64(len(p.events) + 1)}
	p.events = append(p.events, e)
	p.sequence++
	return Frame{Kind: FrameEvents, Data: kvevent.AppendEnvelope(nil, &kvevent.Envelope{PublisherID: p.meta.PublisherID,
		Sequence: p.sequence, Topic: kvevent.Topic, Events: []kvevent.RouterEvent{e}})}
}

// blocks is how many (block, tier) pairs the publisher holds.
func (p *testPublisher) blocks() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.held)
}
