package events

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/blockyard-ai/blockyard/agent/readahead"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/publisher/httpfeed"

	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/metric"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/nats"
	"github.com/blockyard-ai/blockyard/publisher/zmqsink"
)

// Stats count the node's events. In counts the events of engines and pools, Out the router
// events of their streams. Gaps are holes in engines' sequences; each is Repaired or Lost in
// the end.
type Stats struct {
	In        uint64 `json:"in"`
	Out       uint64 `json:"out"`
	Gaps      uint64 `json:"gaps"`
	Repaired  uint64 `json:"repaired"`
	Lost      uint64 `json:"lost"`
	BadFrames uint64 `json:"bad_frames"`
	BadEvents uint64 `json:"bad_events"`
	Restarts  uint64 `json:"restarts" metric:"engine_restarts"`
}

// StreamStats describe one owner's stream.
type StreamStats struct {
	Owner string `json:"owner"`
	// PublisherID is 16 hexadecimal digits; empty when nothing is published.
	PublisherID string         `json:"publisher_id"`
	LastEventID uint64         `json:"last_event_id"`
	Digest      string         `json:"digest"`
	Blocks      uint64         `json:"blocks"`
	Health      kvevent.Health `json:"health"`
	// Dropped are blocks that were not applied, by reason.
	Dropped map[string]uint64 `json:"dropped"`
	// Rank has the counters of a worker rank; nil for a pool and for an engine without events.
	Rank *consolidator.RankStats `json:"rank,omitempty"`
}

// Snapshot has the counters of a hub and the state of its streams.
type Snapshot struct {
	Events  Stats
	Streams []StreamStats // by owner
	Totals  Totals
	Outputs OutputStats
	// Evicted are notices of evictions that were sent, EvictedLost those that found a queue
	// full.
	Evicted, EvictedLost uint64
	// Repairing says that some rank is repairing a gap.
	Repairing bool
}

// Snapshot returns the hub's counters and the state of its streams. It flushes the streams, so
// that ids and digests include every event.
func (h *Hub) Snapshot() *Snapshot {
	s := &Snapshot{Streams: []StreamStats{}, Evicted: h.evictions.sent.Load(), EvictedLost: h.evictions.lost.Load()}
	ranks, pools := h.liveStreams(&s.Totals)
	for _, p := range pools {
		s.Totals.addStream(p.ownerStream)
		s.Streams = append(s.Streams, p.describe(nil))
	}
	for _, r := range ranks {
		rs := r.stats()
		s.Totals.Ranks.Add(rs)
		s.Totals.addStream(r.ownerStream)
		s.Totals.addOutputs(r.outputs)
		d := r.describe(rs.Dropped)
		if r.rank != nil {
			d.Rank = &rs
		}
		s.Streams = append(s.Streams, d)
	}
	slices.SortFunc(s.Streams, func(a, b StreamStats) int { return cmp.Compare(a.Owner, b.Owner) })
	sum := &s.Totals.Ranks
	s.Events = Stats{
		In: sum.Events + h.changes.Load(), Out: s.Totals.Streams.Events,
		Gaps: sum.Gaps, Repaired: sum.Repaired, Lost: sum.Lost,
		BadFrames: sum.BadFrames, BadEvents: sum.BadEvents, Restarts: sum.Restarts,
	}
	s.Outputs = h.out.stats(ranks)
	s.Outputs.CheckpointsFailed = h.files.failed.Load()
	s.Outputs.ReadAhead = h.hints.Stats()
	s.Repairing = sum.Repairing
	return s
}

// describe returns the state of an owner's stream. dropped counts the blocks of engine events
// that were not applied, by reason; nil for a pool.
func (o *ownerStream) describe(dropped map[string]uint64) StreamStats {
	st := o.stream.Status()
	s := StreamStats{
		Owner: o.stream.Owner().String(), LastEventID: st.LastEventID, Digest: hex16(st.Digest),
		Blocks: st.Blocks, Health: st.Health, Dropped: dropped,
	}
	if s.Dropped == nil {
		s.Dropped = map[string]uint64{}
	}
	if id := o.publisherID(); id != 0 {
		s.PublisherID = hex16(id)
	}
	return s
}

func hex16(v uint64) string { return fmt.Sprintf("%016x", v) }

// Totals are the counters of ranks, streams, feeds and merged outputs, ended ones included.
// Every drop, retry and repair is among them. Gauges are sums over the live ones. ZMQ.Next is
// 0.
type Totals struct {
	Ranks   consolidator.RankStats `json:"ranks"`
	Streams residency.Stats        `json:"streams"`
	Feeds   nats.FeedStats         `json:"feeds"`
	ZMQ     zmqsink.Stats          `json:"zmq"`
	Dynamo  dynamo.SourceStats     `json:"dynamo"`
}

func (t *Totals) add(o *Totals) {
	t.Ranks.Add(o.Ranks)
	t.Streams.Add(o.Streams)
	t.Feeds.Add(o.Feeds)
	addSink(&t.ZMQ, &o.ZMQ)
	t.Dynamo.Add(o.Dynamo)
}

// addOutputs adds the counters of rank outputs.
func (t *Totals) addOutputs(outputs []*rankOutput) {
	for _, r := range outputs {
		if r.Sink != nil {
			s := r.Sink.Stats()
			addSink(&t.ZMQ, &s)
		}
		if r.dynamo != nil {
			t.Dynamo.Add(r.dynamo.Stats())
		}
	}
}

// addSink adds o to s. The number of the next batch stays 0: a sum of such numbers means
// nothing.
func addSink(s, o *zmqsink.Stats) {
	metric.Add(s, o)
	s.Next = 0
}

// ended drops the gauges of an ended rank.
func (t *Totals) ended() {
	t.ZMQ.Subscribers, t.ZMQ.Said, t.ZMQ.Left = 0, 0, 0
	t.Dynamo.Waiting, t.Dynamo.Degraded = 0, false
}

// addStream adds the counters of a stream and of its feed.
func (t *Totals) addStream(o *ownerStream) {
	t.Streams.Add(o.stream.Stats())
	if f := o.nats.Load(); f != nil {
		t.Feeds.Add(f.Stats())
	}
}

// OutputStats are the counters of the outputs. Those of the feeds over NATS are in Totals.
type OutputStats struct {
	// NATS is nil without a connection.
	NATS *nats.Stats    `json:"nats,omitempty"`
	HTTP httpfeed.Stats `json:"http" metric:"-"`
	// Dynamo is nil without Dynamo's routers.
	Dynamo *dynamo.PlaneStats `json:"dynamo,omitempty"`
	// Tokens is nil until a ZMQ stream needs tokens.
	Tokens *tokens.Stats `json:"tokens,omitempty"`
	// ZMQFailed are ZMQ streams that could not be opened. Capped are ranks published without
	// their pool's blocks, because the pool has too many followers.
	ZMQFailed uint64 `json:"zmq_failed"`
	Capped    uint64 `json:"capped"`
	// DynamoFailed are ranks that could not be published to Dynamo's routers.
	DynamoFailed uint64 `json:"dynamo_failed"`
	// CheckpointsFailed are ranks without a checkpoint, because the directory cannot be used.
	CheckpointsFailed uint64 `json:"checkpoints_failed"`
	// ReadAhead counts routers' hints of requests that are on their way.
	ReadAhead readahead.Stats `json:"read_ahead" metric:"-"`
	// LoadsLost are load reports that NATS did not take.
	LoadsLost uint64 `json:"loads_lost"`
	// Ranks are the live ranks that are published together with their pools.
	Ranks []RankOutputStats `json:"ranks"`
}

// RankOutputStats are the counters of a rank published together with its pool.
type RankOutputStats struct {
	Owner string `json:"owner"`
	// Blocks is the number of published (block, tier) pairs; 0 in mode passthrough.
	Blocks uint64              `json:"blocks"`
	ZMQ    *zmqsink.Stats      `json:"zmq,omitempty"`
	Dynamo *dynamo.SourceStats `json:"dynamo,omitempty"`
}

// stats returns the counters of the outputs: those of the node, and those of each live rank.
func (o *outputs) stats(ranks []*Rank) OutputStats {
	s := OutputStats{ZMQFailed: o.zmqFailed.Load(), Capped: o.withoutPool.Load(), DynamoFailed: o.dynamoFailed.Load(), LoadsLost: o.loadsLost.Load(), Ranks: []RankOutputStats{}}
	if o.http != nil {
		s.HTTP = o.http.Stats()
	}
	if o.nats != nil {
		n := o.nats.Stats()
		s.NATS = &n
	}
	if o.dynamo != nil {
		d := o.dynamo.Stats()
		s.Dynamo = &d
	}
	if t := o.tokens.Load(); t != nil {
		ts := t.Stats()
		s.Tokens = &ts
	}
	for _, r := range ranks {
		for _, one := range r.outputs {
			s.Ranks = append(s.Ranks, one.stats(r.stream.Owner().String()))
		}
	}
	return s
}

// stats returns the counters of a rank's output. owner is the rank's name.
func (r *rankOutput) stats(owner string) RankOutputStats {
	s := RankOutputStats{Owner: owner}
	if r.Merged != nil {
		s.Blocks = r.Merged.Status().Blocks
	}
	if r.Sink != nil {
		z := r.Sink.Stats()
		s.ZMQ = &z
	}
	if r.dynamo != nil {
		d := r.dynamo.Stats()
		s.Dynamo = &d
	}
	return s
}
