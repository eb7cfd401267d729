package dynamo

import (
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// rank is one data-parallel rank of a Dynamo worker. It looks to the router like a
// publisher of ours: its event ids have no holes and continue when the source changes.
type rank struct {
	worker    kv.Worker
	model     string
	blockSize uint32
	// publisher is the rank's publisher id for the router.
	publisher uint64
	table     *table
	// source is nil while there is none, or more than one.
	source *eventSource

	// card is the worker's card.
	card card

	last, sequence uint64 // ids of the last event and envelope
	health         kvevent.Health
	announceAt     time.Time
	// used is how many device blocks the rank uses, if usedKnown. The router is told again
	// at reportAt.
	used      uint64
	usedKnown bool
	reportAt  time.Time
	changes   []kvevent.RouterEvent // reused
}

// attach makes o the rank's source and forgets what the rank held; nil detaches. It
// appends frames to out.
func (r *rank) attach(out []source.Frame, o *origin, now time.Time) []source.Frame {
	if r.source == nil && o == nil || r.source != nil && o != nil && r.source.origin == *o {
		return out
	}
	out = r.publish(out, r.table.clear(r.changes[:0]))
	r.source = nil
	if o != nil {
		r.source = newEventSource(*o, r.table, r.table.counters, now)
	}
	return out
}

// publish appends the frames of changes. The changes get the rank as owner and its next
// ids.
func (r *rank) publish(out []source.Frame, changes []kvevent.RouterEvent) []source.Frame {
	for i := range changes {
		r.last++
		changes[i].Owner, changes[i].ID = kv.WorkerOwner(r.worker), r.last
	}
	r.changes = changes[:0]
	for len(changes) > 0 {
		n, blocks := 0, 0
		for n < len(changes) && n < kvevent.MaxEventsPerMessage {
			blocks += changes[n].NumBlocks()
			if n > 0 && blocks > kvevent.MaxBlocksPerMessage {
				break
			}
			n++
		}
		e := kvevent.Envelope{PublisherID: r.publisher, Sequence: r.sequence, Events: changes[:n]}
		out = append(out, source.Frame{Kind: source.FrameEvents, Data: kvevent.AppendEnvelope(nil, &e)})
		r.sequence++
		changes = changes[n:]
	}
	return out
}

// announceEvery is the period of a rank's announcements.
const announceEvery = time.Second

// announce appends an announcement when it is due or the rank's health has changed.
func (r *rank) announce(out []source.Frame, now time.Time) []source.Frame {
	health := kvevent.HealthDegraded
	if r.source != nil && r.source.exact() {
		health = kvevent.HealthExact
	}
	if health == r.health && now.Before(r.announceAt) {
		return out
	}
	r.health, r.announceAt = health, now.Add(announceEvery)
	return append(out, r.announcement(health))
}

func (r *rank) announcement(health kvevent.Health) source.Frame {
	a := kvevent.Announcement{
		PublisherID: r.publisher, Owner: kv.WorkerOwner(r.worker), Model: r.model, BlockSize: r.blockSize,
		LastEventID: r.last, Digest: r.table.digest, Blocks: r.table.pairs, Health: health,
		Card: kvevent.ModelCard{Source: sourceName, DeviceBlocks: r.card.deviceBlocks, MaxBatchedTokens: r.card.batchedTokens, Eagle: r.card.eagle},
	}
	return source.Frame{Kind: source.FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)}
}

// answer returns a dump, whatever the router asked for.
func (r *rank) answer() *source.Answer {
	a := &source.Answer{Kind: kvevent.QueryTreeDump, LastEventID: r.last, Events: r.table.dump(nil, nil)}
	for i := range a.Events {
		a.Events[i].Owner, a.Events[i].ID = kv.WorkerOwner(r.worker), uint64(i)
	}
	return a
}

const (
	// loadQueue is how many load messages may wait; each replaces an earlier one.
	loadQueue = 256
	// loadEvery is the period of load reports to the router, which keeps one for a minute.
	// Dynamo's workers send one only when the load changes.
	loadEvery = 20 * time.Second
)

// load applies one message of the topic kvevent.LoadTopic. It counts messages of unknown
// ranks.
func (t *Source) load(data []byte, now time.Time) []source.Frame {
	l, err := kvevent.DecodeLoadEnvelope(data)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		if t.counters.Undecodable++; t.counters.Undecodable == 1 {
			t.log.Warn("message cannot be decoded; further ones are only counted", zap.Error(err))
		}
		return nil
	}
	r := t.ranks[l.Worker]
	if r == nil {
		t.counters.UnknownLoads++
		return nil
	}
	if !l.HasKVUsedBlocks {
		return nil
	}
	t.counters.Loads++
	r.used, r.usedKnown = l.KVUsedBlocks, true
	return r.report(nil, now)
}

// report appends a load report. Requests are left out, because Dynamo does not report them.
func (r *rank) report(out []source.Frame, now time.Time) []source.Frame {
	r.reportAt = now.Add(loadEvery)
	l := kvevent.LoadReport{PublisherID: r.publisher, Owner: kv.WorkerOwner(r.worker), Worker: kvevent.WorkerLoad{DeviceBlocksUsed: r.used}}
	return append(out, source.Frame{Kind: source.FrameLoad, Data: kvevent.AppendLoadReport(nil, &l)})
}
