package dynamo

import (
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// rank is one data-parallel rank of a Dynamo worker. To the router it is a native
// publisher: its event ids have no gaps and continue when the source changes.
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

	lastEvent, nextEnvelope uint64 // id of the last event, sequence number of the next envelope
	health                  kvevent.Health
	announceAt              time.Time
	// usedBlocks is how many device blocks the rank uses, if usedKnown. reportAt is when
	// the next load report is due.
	usedBlocks uint64
	usedKnown  bool
	reportAt   time.Time
	changes    []kvevent.RouterEvent // reused
}

// attach makes o the source of the rank's events; nil is none. Another source than before empties
// the rank, because its events do not continue those of the old one. attach appends the frames that
// tell the router to out.
func (r *rank) attach(out []source.Frame, o *origin, now time.Time) []source.Frame {
	hasNone := r.source == nil && o == nil
	hasSame := r.source != nil && o != nil && r.source.origin == *o
	if hasNone || hasSame {
		return out
	}
	out = r.publish(out, r.table.clear(r.changes[:0]))
	r.source = nil
	if o != nil {
		r.source = newEventSource(*o, r.table, r.table.counters, now)
	}
	return out
}

// publish appends changes of the rank's blocks to out, as frames for the router. It numbers the
// changes with the rank's own ids, which have no gaps, and sets their owner. A frame has as many
// changes as a message may have. The memory of changes is reused afterwards.
func (r *rank) publish(out []source.Frame, changes []kvevent.RouterEvent) []source.Frame {
	for i := range changes {
		r.lastEvent++
		changes[i].Owner, changes[i].ID = kv.WorkerOwner(r.worker), r.lastEvent
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
		e := kvevent.Envelope{PublisherID: r.publisher, Sequence: r.nextEnvelope, Events: changes[:n]}
		out = append(out, source.Frame{Kind: source.FrameEvents, Data: kvevent.AppendEnvelope(nil, &e)})
		r.nextEnvelope++
		changes = changes[n:]
	}
	return out
}

// announceInterval is the period of a rank's announcements.
const announceInterval = time.Second

// announce appends an announcement of the rank to out when it is due or the rank's health has
// changed. A rank is exact while its source is exact.
func (r *rank) announce(out []source.Frame, now time.Time) []source.Frame {
	health := kvevent.HealthDegraded
	if r.source != nil && r.source.exact() {
		health = kvevent.HealthExact
	}
	if health == r.health && now.Before(r.announceAt) {
		return out
	}
	r.health, r.announceAt = health, now.Add(announceInterval)
	return append(out, r.announcement(health))
}

// announcement returns an announcement of the rank.
func (r *rank) announcement(health kvevent.Health) source.Frame {
	a := kvevent.Announcement{
		PublisherID: r.publisher, Owner: kv.WorkerOwner(r.worker), Model: r.model, BlockSize: r.blockSize,
		LastEventID: r.lastEvent, Digest: r.table.digest, Blocks: r.table.pairs, Health: health,
		Card: kvevent.ModelCard{Source: sourceName, DeviceBlocks: r.card.deviceBlocks, MaxBatchedTokens: r.card.batchedTokens, Eagle: r.card.eagle},
	}
	return source.Frame{Kind: source.FrameAnnouncement, Data: kvevent.AppendAnnouncement(nil, &a)}
}

// answer returns the answer to every query: a dump.
func (r *rank) answer() *source.Answer {
	a := &source.Answer{Kind: kvevent.QueryTreeDump, LastEventID: r.lastEvent, Events: r.table.dump(nil, nil)}
	for i := range a.Events {
		a.Events[i].Owner, a.Events[i].ID = kv.WorkerOwner(r.worker), uint64(i)
	}
	return a
}

const (
	// loadQueue is how many load messages may wait.
	loadQueue = 256
	// loadInterval is the period of load reports to the router. The router keeps a report
	// for a minute, but Dynamo's workers report only changes.
	loadInterval = 20 * time.Second
)

// handleLoad handles one load message of a Dynamo worker, and returns a load report for the router.
// It returns none for a message of an unknown rank or without the number of used blocks.
func (t *Source) handleLoad(data []byte, now time.Time) []source.Frame {
	l, err := kvevent.DecodeLoadEnvelope(data)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		if t.counters.Undecodable++; t.counters.Undecodable == 1 {
			t.log.Warn("load message cannot be decoded; further ones are only counted", zap.Error(err))
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
	r.usedBlocks, r.usedKnown = l.KVUsedBlocks, true
	return r.report(nil, now)
}

// report appends a load report. The report has no requests: Dynamo does not report them.
func (r *rank) report(out []source.Frame, now time.Time) []source.Frame {
	r.reportAt = now.Add(loadInterval)
	l := kvevent.LoadReport{PublisherID: r.publisher, Owner: kv.WorkerOwner(r.worker), Worker: kvevent.WorkerLoad{DeviceBlocksUsed: r.usedBlocks}}
	return append(out, source.Frame{Kind: source.FrameLoad, Data: kvevent.AppendLoadReport(nil, &l)})
}
