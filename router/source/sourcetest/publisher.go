package sourcetest

import (
	"slices"
	"sync"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// BlockSize is that of all test publishers, in tokens.
const BlockSize = 4

// Publisher is a publisher that loses nothing: it keeps every event, knows
// what its owner holds, and answers any query.
type Publisher struct {
	Meta kvevent.Announcement
	// PublishedAt is in the messages from now on, 0 for none.
	PublishedAt uint64

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

// NewPublisher returns a publisher that holds nothing.
func NewPublisher(id uint64, owner kv.Owner, pool uint64) *Publisher {
	return &Publisher{
		held: make(map[heldBlock]bool), places: make(map[kv.SequenceHash]kvevent.RouterEvent),
		Meta: kvevent.Announcement{PublisherID: id, Owner: owner, Pool: pool, Model: "m",
			BlockSize: BlockSize, Health: kvevent.HealthExact},
	}
}

// Tokens are the tokens of a prompt whose n-th block is made of ids[n].
func Tokens(ids ...uint32) []uint32 {
	var tokens []uint32
	for _, id := range ids {
		for i := range uint32(BlockSize) {
			tokens = append(tokens, id*100+i)
		}
	}
	return tokens
}

// Add makes an event that stores or removes the blocks of tokens from block
// first on, and returns the message that publishes it.
func (p *Publisher) Add(kind kvevent.Kind, t kv.Tier, tokens []uint32, first int) []byte {
	var h kv.Hasher
	locals := h.AppendLocals(nil, tokens, BlockSize, kv.LocalSeed("", ""))
	seq := kv.AppendSequence(nil, locals)
	p.mu.Lock()
	defer p.mu.Unlock()
	e := kvevent.RouterEvent{Owner: p.Meta.Owner, Tier: t, Kind: kind, ID: uint64(len(p.events) + 1)}
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
	return kvevent.AppendEnvelope(nil, &kvevent.Envelope{PublisherID: p.Meta.PublisherID,
		Sequence: p.sequence, PublishedAt: p.PublishedAt, Topic: kvevent.Topic, Events: []kvevent.RouterEvent{e}})
}

// Store stores the blocks of a prompt and returns the frame that says so.
func (p *Publisher) Store(t kv.Tier, tokens []uint32) source.Frame {
	return source.Frame{Kind: source.FrameEvents, Data: p.Add(kvevent.Stored, t, tokens, 0)}
}

// Drift changes what the publisher holds without telling anybody.
func (p *Publisher) Drift(h kv.SequenceHash) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[heldBlock{h, kv.TierDevice}] = true
	p.places[h] = kvevent.RouterEvent{Blocks: []kvevent.StoredBlock{{Hash: h, Local: kv.LocalHash(h)}}}
}

// Announcement is an encoded announcement of what the publisher holds now.
func (p *Publisher) Announcement() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.Meta
	a.LastEventID, a.Blocks = uint64(len(p.events)), uint64(len(p.held))
	for b := range p.held {
		a.Digest += kv.Digest(b.hash, b.tier)
	}
	return kvevent.AppendAnnouncement(nil, &a)
}

// Announce is the frame of an announcement.
func (p *Publisher) Announce() source.Frame {
	return source.Frame{Kind: source.FrameAnnouncement, Data: p.Announcement()}
}

// Goodbye is the last announcement.
func (p *Publisher) Goodbye() source.Frame {
	a := p.Meta
	a.Health = kvevent.HealthGone
	return source.Frame{Kind: source.FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)}
}

// Answer returns the answer to query q: the events from q.StartID on, or without a start a dump of
// all blocks, one event per block.
func (p *Publisher) Answer(q kvevent.QueryRequest) *source.Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := uint64(len(p.events))
	if q.HasStart {
		return &source.Answer{Kind: kvevent.QueryEvents, LastEventID: last, Events: slices.Clone(p.events[min(q.StartID-1, last):])}
	}
	a := &source.Answer{Kind: kvevent.QueryTreeDump, LastEventID: last}
	for b := range p.held {
		e := p.places[b.hash]
		e.Owner, e.Tier, e.Kind, e.ID = p.Meta.Owner, b.tier, kvevent.Stored, uint64(len(a.Events))
		a.Events = append(a.Events, e)
	}
	return a
}

// WorkerOwner is the owner of rank 0 of a worker.
func WorkerOwner(id uint64) kv.Owner { return kv.WorkerOwner(kv.Worker{ID: kv.WorkerID(id)}) }

// Of makes a publisher one of a model.
func (p *Publisher) Of(model string, blockSize uint32) *Publisher {
	p.Meta.Model, p.Meta.BlockSize = model, blockSize
	return p
}

// Clear makes an event after which the owner holds nothing.
func (p *Publisher) Clear() source.Frame {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.held)
	e := kvevent.RouterEvent{Owner: p.Meta.Owner, Kind: kvevent.Cleared, ID: uint64(len(p.events) + 1)}
	p.events = append(p.events, e)
	p.sequence++
	return source.Frame{Kind: source.FrameEvents, Data: kvevent.AppendEnvelope(nil, &kvevent.Envelope{PublisherID: p.Meta.PublisherID,
		Sequence: p.sequence, PublishedAt: p.PublishedAt, Topic: kvevent.Topic, Events: []kvevent.RouterEvent{e}})}
}

// Blocks is how many (block, tier) pairs the publisher holds.
func (p *Publisher) Blocks() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.held)
}
