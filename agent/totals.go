package agent

import (
	"github.com/blockyard-ai/blockyard/consolidator"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/internal/metric"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/nats"
	"github.com/blockyard-ai/blockyard/publisher/zmqsink"
)

// EventTotals are the counters of all that events pass on their way out, summed
// over the node's ranks, streams, feeds and merged outputs, those that have ended
// included. It is where every drop, retry and repair can be seen. Gauges among them
// are sums over those that live; ZMQ.Next is 0.
type EventTotals struct {
	Ranks   consolidator.RankStats `json:"ranks"`
	Streams residency.Stats        `json:"streams"`
	Feeds   nats.FeedStats         `json:"feeds"`
	ZMQ     zmqsink.Stats          `json:"zmq"`
	Dynamo  dynamo.SourceStats     `json:"dynamo"`
}

func (t *EventTotals) add(o *EventTotals) {
	t.Ranks.Add(o.Ranks)
	t.Streams.Add(o.Streams)
	t.Feeds.Add(o.Feeds)
	addSink(&t.ZMQ, &o.ZMQ)
	t.Dynamo.Add(o.Dynamo)
}

// addReaches adds what tells of ranks together with their pools.
func (t *EventTotals) addReaches(reaches []*reach) {
	for _, r := range reaches {
		if r.zmq != nil {
			s := r.zmq.Stats()
			addSink(&t.ZMQ, &s)
		}
		if r.dynamo != nil {
			t.Dynamo.Add(r.dynamo.Stats())
		}
	}
}

// addSink adds the numbers of o to s. The number of the next batch stays 0: a sum of
// such numbers means nothing.
func addSink(s, o *zmqsink.Stats) {
	metric.Add(s, o)
	s.Next = 0
}

// ended forgets what is about the present of what has ended.
func (t *EventTotals) ended() {
	t.ZMQ.Subscribers, t.ZMQ.Said, t.ZMQ.Left = 0, 0, 0
	t.Dynamo.Waiting, t.Dynamo.Degraded = 0, false
}

// addStream adds what a stream and its feed count.
func (t *EventTotals) addStream(o *ownerStream) {
	t.Streams.Add(o.stream.Stats())
	if f := o.nats.Load(); f != nil {
		t.Feeds.Add(f.Stats())
	}
}
