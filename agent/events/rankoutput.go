package events

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/zmqsink"
)

// sinkPortOffset is what is added to the port of an engine's events for that of
// the same in the engines' format; KVBM's consolidator has the same rule.
const sinkPortOffset = 1000

// poolJoinTimeout is how long Dynamo's routers wait to hear of a rank until its pool's
// blocks are in: a second or two for millions of blocks. After that they are told of the
// rank without those that are not in yet, and everything again when they are.
const poolJoinTimeout = 5 * time.Second

// rankOutput tells an output that knows workers only of one rank: the rank's own blocks
// and its pool's together.
type rankOutput struct {
	own    *residency.Stream
	merged *residency.Merged
	zmq    *zmqsink.Sink
	dynamo *dynamo.Source
}

// boundSink is the sink of a merged stream whose output asks the merged stream in
// turn: it is set after both were made, before the first event.
type boundSink struct{ residency.Sink }

// HealthChanged implements residency.HealthObserver.
func (s *boundSink) HealthChanged(h kvevent.Health) {
	if o, ok := s.Sink.(residency.HealthObserver); ok {
		o.HealthChanged(h)
	}
}

// StateJoined implements residency.StateObserver.
func (s *boundSink) StateJoined() {
	if o, ok := s.Sink.(residency.StateObserver); ok {
		o.StateJoined()
	}
}

// openDynamo tells Dynamo's routers of a rank; nil when nobody asked for that. The routers
// ask for the state when they hear of the rank, so that the rank joins its pool first. An
// error costs this stream and nothing else.
func (o *outputs) openDynamo(w kv.Worker, own, pool *residency.Stream) (*rankOutput, error) {
	if o.dynamo == nil {
		return nil, nil
	}
	r := &rankOutput{merged: residency.NewMerged(w, residency.MergeTiered, nil)}
	joined := false
	err := r.join(o, own, pool)
	if err == nil {
		joined = r.awaitPool()
		r.dynamo, err = o.dynamo.NewSource(w, statusSource{r.merged})
	}
	if err == nil {
		err = r.merged.AddSink(r.dynamo) // an event between the two is missed, and all is said again
	}
	if err == nil && !joined {
		r.dynamo.StateJoined() // the pool may have joined between the two, which no event shows
	}
	if err != nil {
		r.close()
		o.dynamoFailed.Add(1)
		o.log.Error("Dynamo's routers are not told of a rank", zap.Stringer("worker", w), zap.Error(err))
		return nil, fmt.Errorf("Dynamo's routers are not told of worker %s: %w", w, err)
	}
	return r, nil
}

// openZMQ tells of a rank in the engines' own format; nil when nobody asked for
// that. An endpoint that cannot be bound costs this stream and nothing else; the error is
// for the engine, whose Dynamo worker then follows what somebody else publishes there.
// holder says which rank has the port.
func (o *outputs) openZMQ(w kv.Worker, h *proto.Hello, holder func(endpoint string) (kv.Owner, bool)) (*rankOutput, error) {
	bind, err := o.sinkEndpoint(h)
	if bind == "" && err == nil {
		return nil, nil
	}
	opt := zmqsink.Options{Bind: bind, Worker: w, BlockSize: h.Namespace.BlockSize, Topic: h.EventsTopic, Log: o.log}
	r := &rankOutput{}
	if err == nil {
		err = r.openSink(opt, o.sinkMode(h), o)
	}
	if err != nil {
		o.zmqFailed.Add(1)
		if other, ok := holder(bind); ok {
			err = fmt.Errorf("%s of this agent has the port or that of the replays, and who subscribes there is told of its blocks instead: "+
				"give each engine of a node a DYN_KVBM_LEADER_ZMQ_PUB_PORT of its own (%w)", other, err)
		}
		err = fmt.Errorf("no consolidated events of worker %s at %q: %w", w, bind, err)
		o.log.Error("no events in the engines' format", zap.Stringer("worker", w), zap.Error(err))
		return nil, err
	}
	o.log.Info("events in the engines' format", zap.Stringer("worker", w), zap.String("mode", o.sinkMode(h)),
		zap.String("endpoint", r.zmq.Endpoint()), zap.String("replay", r.zmq.ReplayEndpoint()))
	return r, nil
}

// portTaken reports whether to bind endpoint, with its replay endpoint, takes a TCP port that
// one of bound has.
func portTaken(endpoint string, bound ...string) bool {
	own := portOf(endpoint)
	for _, b := range bound {
		if n := portOf(b); own != 0 && n != 0 && (n == own || n == own+sinkPortOffset) {
			return true
		}
	}
	return false
}

// portOf is the port of tcp://HOST:PORT, 0 for another endpoint.
func portOf(endpoint string) uint64 {
	_, port, err := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(port, 10, 16) // 0 for what is no port
	return n
}

func (r *rankOutput) openSink(opt zmqsink.Options, mode string, o *outputs) (err error) {
	if mode == proto.ConsolidatorPassthrough {
		r.zmq, err = zmqsink.New(opt, nil, nil)
		return err
	}
	merge := residency.MergeTiered
	if mode == proto.ConsolidatorDedup {
		merge = residency.MergeDedup
	}
	sink := &boundSink{}
	r.merged = residency.NewMerged(opt.Worker, merge, sink)
	r.merged.KeepTokens(o.tokenTable())
	if r.zmq, err = zmqsink.New(opt, statusSource{r.merged}, o.tokenTable()); err != nil {
		return err
	}
	sink.Sink = r.zmq
	return nil
}

// sinkEndpoint is where to publish in the engines' format; empty: nowhere.
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

// sinkMode is how the stream in the engines' format names and merges blocks.
func (o *outputs) sinkMode(h *proto.Hello) string {
	for _, mode := range []string{h.ConsolidatorMode, o.cfg.ZMQMode} {
		if mode != "" {
			return mode
		}
	}
	return proto.ConsolidatorTiered
}

// tokenSink is who has to know the tokens of the rank's blocks; nil: nobody.
func (r *rankOutput) tokenSink(o *outputs) tokens.Sink {
	if r == nil || r.zmq == nil || r.merged == nil {
		return nil
	}
	return o.tokenTable()
}

// raw is who gets the engine's own batches; nil: nobody.
func (r *rankOutput) raw() func(payload []byte) {
	if r == nil || r.zmq == nil || r.merged != nil {
		return nil
	}
	return func(payload []byte) { r.zmq.Raw(slices.Clone(payload)) }
}

// join begins to follow both streams. The rank does without its pool's blocks when
// too many ranks follow that already.
func (r *rankOutput) join(o *outputs, own, pool *residency.Stream) error {
	if r.merged == nil {
		return nil
	}
	if err := own.AddSink(r.merged.Own()); err != nil {
		return err
	}
	r.own = own
	if err := r.merged.FollowPool(pool); err != nil {
		o.withoutPool.Add(1)
		o.log.Warn("a rank is told without its pool's blocks", zap.Stringer("owner", own.Owner()), zap.Error(err))
	}
	return nil
}

// awaitPool waits until the pool's blocks are in, but not for long: false when they are
// still coming. The caller holds no lock.
func (r *rankOutput) awaitPool() bool {
	if r.merged.Joined() == nil {
		return true // there is no room to follow the pool
	}
	timeout := time.NewTimer(poolJoinTimeout)
	defer timeout.Stop()
	select {
	case <-r.merged.Joined():
		return true
	case <-timeout.C:
		return false
	}
}

// close ends the output.
func (r *rankOutput) close() {
	if r.merged != nil {
		r.merged.Detach()
	}
	if r.own != nil {
		r.own.RemoveSink(r.merged.Own())
	}
	if r.zmq != nil {
		r.zmq.Close()
	}
	if r.dynamo != nil {
		r.dynamo.Close()
	}
	if r.merged != nil {
		r.merged.Close()
	}
}
