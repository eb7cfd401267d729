package agent

import (
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/httpfeed"
	"github.com/blockyard-ai/blockyard/publisher/zmqsink"
)

// OutputStats are the counters of where events are told besides NATS, whose are in
// EventTotals.
type OutputStats struct {
	HTTP httpfeed.Stats `json:"http" metric:"-"`
	// Dynamo is nil when Dynamo's routers are told nothing.
	Dynamo *dynamo.PlaneStats `json:"dynamo,omitempty"`
	// Tokens is nil until a stream in the engines' format wants them.
	Tokens *tokens.Stats `json:"tokens,omitempty"`
	// ZMQFailed are streams in the engines' format that could not be made, Capped the
	// ranks that are told without their pool's blocks because too many follow it.
	ZMQFailed uint64 `json:"zmq_failed"`
	Capped    uint64 `json:"capped"`
	// DynamoFailed are the ranks that Dynamo's routers could not be told of.
	DynamoFailed uint64 `json:"dynamo_failed"`
	// CheckpointsFailed are the ranks of which nothing is kept for the next agent, because
	// the directory for that cannot be used.
	CheckpointsFailed uint64 `json:"checkpoints_failed"`
	// LoadsLost are load reports that NATS did not take.
	LoadsLost uint64 `json:"loads_lost"`
	// Ranks are those that live, told as one with their pools.
	Ranks []RankOutputStats `json:"ranks"`
}

// RankOutputStats are the counters of what tells of one rank and its pool together.
type RankOutputStats struct {
	Owner string `json:"owner"`
	// Blocks is the number of (block, tier) pairs told of; 0 in mode passthrough.
	Blocks uint64              `json:"blocks"`
	ZMQ    *zmqsink.Stats      `json:"zmq,omitempty"`
	Dynamo *dynamo.SourceStats `json:"dynamo,omitempty"`
}

// stats takes a snapshot; ranks are those that live.
func (o *outputs) stats(ranks []*rankStream) OutputStats {
	s := OutputStats{ZMQFailed: o.failed.Load(), Capped: o.capped.Load(), DynamoFailed: o.dynamoFailed.Load(), LoadsLost: o.loadsLost.Load(), Ranks: []RankOutputStats{}}
	if o.http != nil {
		s.HTTP = o.http.Stats()
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
		for _, one := range r.reaches {
			s.Ranks = append(s.Ranks, one.stats(r.stream.Owner().String()))
		}
	}
	return s
}

func (r *reach) stats(owner string) RankOutputStats {
	s := RankOutputStats{Owner: owner}
	if r.merged != nil {
		s.Blocks = r.merged.Status().Blocks
	}
	if r.zmq != nil {
		z := r.zmq.Stats()
		s.ZMQ = &z
	}
	if r.dynamo != nil {
		d := r.dynamo.Stats()
		s.Dynamo = &d
	}
	return s
}
