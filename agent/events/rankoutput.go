package events

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/agent/consolidated"
	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/zmqsink"
)

// sinkPortOffset is the distance from the port of an engine's events to that of its ZMQ stream
// here, as in KVBM's consolidator.
const sinkPortOffset = 1000

// poolJoinTimeout bounds how long a rank waits for its pool's blocks before it announces itself
// to Dynamo's routers. Millions of blocks take a second or two. Blocks that arrive later come
// with a repeated announcement.
const poolJoinTimeout = 5 * time.Second

// rankOutput publishes one rank's blocks and its pool's together, to an output that knows
// workers only: either Sink or dynamo is set.
type rankOutput struct {
	*consolidated.Output
	dynamo *dynamo.Source
}

// openDynamo publishes a rank to Dynamo's routers, which know no pools: the output merges the
// rank's own stream with its pool's. It returns nil without that output. The routers ask for the
// state when they hear of a rank, so openDynamo waits for the pool's blocks first. An error is
// logged and costs this output alone.
func (o *outputs) openDynamo(w kv.Worker, own, pool *residency.Stream) (*rankOutput, error) {
	if o.dynamo == nil {
		return nil, nil
	}
	r := &rankOutput{Output: &consolidated.Output{Merged: residency.NewMerged(w, residency.MergeTiered, nil)}}
	joined := false
	err := r.follow(o, own, pool)
	if err == nil {
		joined = r.awaitPool()
		r.dynamo, err = o.dynamo.NewSource(w, r.Merged)
	}
	if err == nil {
		err = r.Merged.AddSink(r.dynamo) // the source sees a missed event by the gap, and sends the state
	}
	if err == nil && !joined {
		// The pool's blocks may have come before AddSink: nobody has told the source.
		r.dynamo.StateJoined()
	}
	if err != nil {
		r.close()
		o.dynamoFailed.Add(1)
		o.log.Error("a rank is not published to Dynamo's routers", zap.Stringer("worker", w), zap.Error(err))
		return nil, fmt.Errorf("worker %s is not published to Dynamo's routers: %w", w, err)
	}
	return r, nil
}

// openZMQ publishes a rank over ZMQ in vLLM's event format. It returns nil without that output. An
// endpoint that cannot be bound costs this output alone. The error is a warning for the engine:
// its Dynamo worker would follow another publisher there. holder returns the rank of this agent
// that uses the endpoint's port, for the error's text.
func (o *outputs) openZMQ(w kv.Worker, h *proto.Hello, holder func(endpoint string) (kv.Owner, bool)) (*rankOutput, error) {
	bind, err := o.sinkEndpoint(h)
	if bind == "" && err == nil {
		return nil, nil
	}
	opt := zmqsink.Options{Bind: bind, Worker: w, BlockSize: h.Namespace.BlockSize, Topic: h.EventsTopic, Log: o.log}
	opt.Groups, _ = kvevent.NewGroups(h.Namespace.KVGroups())
	mode := o.sinkMode(h)
	r := &rankOutput{}
	if err == nil {
		r.Output, err = consolidated.Open(opt, mode, o.tokensFor(mode))
	}
	if err != nil {
		o.zmqFailed.Add(1)
		if other, ok := holder(bind); ok {
			err = fmt.Errorf("%s of this agent uses the port or the port of the replays, and subscribers there get its blocks instead: "+
				"give each engine of a node a DYN_KVBM_LEADER_ZMQ_PUB_PORT of its own (%w)", other, err)
		}
		err = fmt.Errorf("no ZMQ stream of worker %s at %q: %w", w, bind, err)
		o.log.Error("a ZMQ stream of a rank cannot be opened", zap.Stringer("worker", w), zap.Error(err))
		return nil, err
	}
	o.log.Info("a ZMQ stream of a rank is open", zap.Stringer("worker", w), zap.String("mode", mode),
		zap.String("endpoint", r.Sink.Endpoint()), zap.String("replay", r.Sink.ReplayEndpoint()))
	return r, nil
}

// portTaken reports whether endpoint needs a TCP port that one of the bound endpoints has. Its
// replays need another port, sinkPortOffset higher.
func portTaken(endpoint string, bound ...string) bool {
	own := portOf(endpoint)
	for _, b := range bound {
		if n := portOf(b); own != 0 && n != 0 && (n == own || n == own+sinkPortOffset) {
			return true
		}
	}
	return false
}

// portOf returns the port of tcp://HOST:PORT, 0 for another endpoint.
func portOf(endpoint string) uint64 {
	_, port, err := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(port, 10, 16) // 0 for no port
	return n
}

// sinkEndpoint returns the endpoint of a rank's ZMQ stream; empty for no stream. HELLO may name
// it. Otherwise its port is that of the engine's events plus sinkPortOffset, if the agent is
// configured to publish ZMQ streams.
func (o *outputs) sinkEndpoint(h *proto.Hello) (string, error) {
	switch {
	case h.ConsolidatedEndpoint != "":
		return h.ConsolidatedEndpoint, nil
	case !o.cfg.ZMQ || h.EventsEndpoint == "":
		return "", nil
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(h.EventsEndpoint, "tcp://"))
	if err != nil {
		return "", fmt.Errorf("events_endpoint %q: want tcp://HOST:PORT to put %d to the port", h.EventsEndpoint, sinkPortOffset)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || n > 65535-sinkPortOffset {
		return "", fmt.Errorf("events_endpoint %q: want a port in 1..%d", h.EventsEndpoint, 65535-sinkPortOffset)
	}
	return "tcp://" + net.JoinHostPort(cmp.Or(o.cfg.ZMQHost, "*"), strconv.FormatUint(n+sinkPortOffset, 10)), nil
}

// sinkMode returns how the ZMQ stream names and merges blocks.
func (o *outputs) sinkMode(h *proto.Hello) string {
	for _, mode := range []string{h.ConsolidatorMode, o.cfg.ZMQMode} {
		if mode != "" {
			return mode
		}
	}
	return proto.ConsolidatorTiered
}

// tokensFor returns the table of tokens, which a mode that merges needs; nil for passthrough.
func (o *outputs) tokensFor(mode string) *tokens.Table {
	if mode == proto.ConsolidatorPassthrough {
		return nil
	}
	return o.tokenTable()
}

// follow adds the rank's blocks and its pool's to the output. A pool with too many followers is
// left out, and counted.
func (r *rankOutput) follow(o *outputs, own, pool *residency.Stream) error {
	if err := r.Follow(own); err != nil {
		return err
	}
	if err := r.FollowPool(pool); err != nil {
		o.withoutPool.Add(1)
		o.log.Warn("a rank is published without its pool's blocks", zap.Stringer("owner", own.Owner()), zap.Error(err))
	}
	return nil
}

// awaitPool waits a bounded time for the pool's blocks. It returns false when they have not
// arrived. The caller holds no lock.
func (r *rankOutput) awaitPool() bool {
	if r.Merged.Joined() == nil {
		return true // the pool has too many followers
	}
	timeout := time.NewTimer(poolJoinTimeout)
	defer timeout.Stop()
	select {
	case <-r.Merged.Joined():
		return true
	case <-timeout.C:
		return false
	}
}

// close ends the output.
func (r *rankOutput) close() {
	r.Unfollow()
	if r.dynamo != nil {
		r.dynamo.Close()
	}
	r.Close()
}
