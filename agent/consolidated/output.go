package consolidated

import (
	"slices"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher/zmqsink"
)

// Output publishes the blocks that one worker rank can reach.
type Output struct {
	// Merged holds these blocks; nil in mode passthrough.
	Merged *residency.Merged
	// Sink publishes them; nil when another output publishes Merged.
	Sink *zmqsink.Sink

	tokens *tokens.Table
	own    *residency.Stream // the stream given to Follow, until Unfollow; else nil
}

// Open binds the endpoints of opt and publishes there. The mode is one of the
// proto.Consolidator… constants. In the modes that merge, table says the tokens of
// blocks.
func Open(opt zmqsink.Options, mode string, table *tokens.Table) (o *Output, err error) {
	o = &Output{}
	if mode == proto.ConsolidatorPassthrough {
		o.Sink, err = zmqsink.New(opt, nil, nil)
		return o, err
	}
	merge := residency.MergeTiered
	if mode == proto.ConsolidatorDedup {
		merge = residency.MergeDedup
	}
	o.Merged, o.tokens = residency.NewMerged(opt.Worker, merge, nil), table
	o.Merged.KeepTokens(table)
	if o.Sink, err = zmqsink.New(opt, o.Merged, table); err != nil {
		return nil, err
	}
	if err := o.Merged.AddSink(o.Sink); err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

// Follow adds the rank's own blocks from the stream own, which must be empty. In
// mode passthrough it does nothing. The error says that the stream has no room for
// another sink.
func (o *Output) Follow(own *residency.Stream) error {
	if o.Merged == nil {
		return nil
	}
	if err := own.AddSink(o.Merged.Own()); err != nil {
		return err
	}
	o.own = own
	return nil
}

// FollowPool takes in the pool's blocks, in the background. In mode passthrough it does
// nothing. The error says that the stream has no room for another follower.
func (o *Output) FollowPool(pool *residency.Stream) error {
	if o.Merged == nil {
		return nil
	}
	return o.Merged.FollowPool(pool)
}

// Tokens returns the sink for the tokens of the rank's blocks. It returns nil in mode
// passthrough and for a nil Output: tokens are not needed.
func (o *Output) Tokens() tokens.Sink {
	if o == nil || o.tokens == nil {
		return nil
	}
	return o.tokens
}

// Raw returns the function that publishes a copy of one raw engine batch. It returns nil
// except in mode passthrough, and for a nil Output.
func (o *Output) Raw() func(payload []byte) {
	if o == nil || o.Sink == nil || o.Merged != nil {
		return nil
	}
	return func(payload []byte) { o.Sink.Raw(slices.Clone(payload)) }
}

// Unfollow undoes Follow and FollowPool: Merged takes no more changes from the rank's stream
// and the pool's. Merged keeps its blocks until Close.
func (o *Output) Unfollow() {
	if o.Merged != nil {
		o.Merged.Detach()
	}
	if o.own != nil {
		o.own.RemoveSink(o.Merged.Own())
		o.own = nil
	}
}

// Close calls Unfollow, sends the queued batches and unbinds the endpoints.
func (o *Output) Close() {
	o.Unfollow()
	if o.Sink != nil {
		o.Sink.Close()
	}
	if o.Merged != nil {
		o.Merged.Close()
	}
}
