package events

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/consolidator/residency"
	"github.com/blockyard-ai/blockyard/consolidator/tokens"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/proto"
	"github.com/blockyard-ai/blockyard/publisher"
	"github.com/blockyard-ai/blockyard/publisher/dynamo"
	"github.com/blockyard-ai/blockyard/publisher/httpfeed"
	"github.com/blockyard-ai/blockyard/publisher/nats"
)

// outputs publish the streams of a node. Each owner's native stream goes over NATS and HTTP.
// Outputs that know workers only get each worker's blocks and its pool's together, in a
// rankOutput.
type outputs struct {
	cfg    *Config
	server *nats.Embedded // nil: no embedded server
	nats   *nats.Conn     // nil: no NATS
	http   *httpfeed.Hub  // nil: no HTTP
	dynamo *dynamo.Plane  // nil: no Dynamo routers
	log    *zap.Logger
	// tokens is nil until a ZMQ stream needs tokens.
	tokens       atomic.Pointer[tokens.Table]
	zmqFailed    atomic.Uint64 // ZMQ streams that could not be opened
	dynamoFailed atomic.Uint64 // ranks that Dynamo's routers do not hear of
	withoutPool  atomic.Uint64 // ranks published without their pool's blocks
	loadsLost    atomic.Uint64 // load reports that NATS did not take
}

// openOutputs connects the outputs. An error leaves nothing open.
func openOutputs(ctx context.Context, cfg *Config, log *zap.Logger) (*outputs, error) {
	o := &outputs{cfg: cfg, log: log}
	if err := o.open(ctx); err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

// open connects the outputs that Config names: HTTP always, then NATS, by URL or as a server in
// this process, and Dynamo's plane over NATS. After an error the caller closes o.
func (o *outputs) open(ctx context.Context) (err error) {
	cfg, log := o.cfg, o.log
	if o.http, err = httpfeed.New(httpfeed.Options{Log: log}); err != nil {
		return err
	}
	n := cfg.natsOptions()
	switch {
	case cfg.Embedded != nil:
		e := *cfg.Embedded
		e.Log = log.Named("nats")
		if o.server, err = startEmbedded(cfg, e); err != nil {
			return err
		}
		n.URL = o.server.URL()
	case cfg.NATSURL == "":
		log.Info("no NATS URL is set: events go over HTTP alone")
		return nil
	}
	n.Log = log
	if o.nats, err = nats.Connect(ctx, n); err != nil {
		return err
	}
	if d := cfg.Dynamo; d != nil {
		d := *d
		d.Log = log.Named("dynamo")
		o.dynamo, err = dynamo.Open(ctx, d, o.nats)
	}
	return err
}

// close closes the outputs. Dynamo's plane uses the NATS connection, and that the embedded server:
// each closes before what it uses. The streams must have ended.
func (o *outputs) close() error {
	var errs []error
	if o.dynamo != nil {
		errs = append(errs, o.dynamo.Close())
	}
	if o.http != nil {
		errs = append(errs, o.http.Close())
	}
	if o.nats != nil {
		errs = append(errs, o.nats.Close())
	}
	if o.server != nil {
		o.server.Close()
	}
	return errors.Join(errs...)
}

// Numbers of file descriptors. libzmq aborts the process when it finds none for a context or a
// socket. A session therefore reserves its streams' descriptors before they open.
const (
	// rankDescriptors follow an engine's events, replays included.
	rankDescriptors = 20
	// zmqDescriptors publish a ZMQ stream to a few subscribers.
	zmqDescriptors = 20
	// MaxRankDescriptors bounds the descriptors of the streams of one rank.
	MaxRankDescriptors = rankDescriptors + zmqDescriptors
)

// descriptors returns how many file descriptors the event streams of an engine take.
func (o *outputs) descriptors(h *proto.Hello) (n int) {
	if h.EventsEndpoint != "" {
		n += rankDescriptors
	}
	if bind, err := o.sinkEndpoint(h); bind != "" && err == nil {
		n += zmqDescriptors
	}
	return n
}

// tokenTable returns the table of blocks' tokens, which the first call makes.
func (o *outputs) tokenTable() *tokens.Table {
	if t := o.tokens.Load(); t != nil {
		return t
	}
	o.tokens.CompareAndSwap(nil, tokens.New(o.cfg.TokenMemory))
	return o.tokens.Load()
}

// tokenSink returns the table of blocks' tokens; nil before the first tokenTable.
func (o *outputs) tokenSink() tokens.Sink {
	if t := o.tokens.Load(); t != nil {
		return t
	}
	return nil
}

// publishLoad publishes an owner's load over every output. A report that NATS does not take is
// lost and counted.
func (o *outputs) publishLoad(r *kvevent.LoadReport) {
	if o.http != nil {
		o.http.PublishLoad(r)
	}
	if o.nats != nil {
		// the next report follows in a second
		if o.nats.Publish(kvevent.LoadSubject(o.cfg.Cluster, r.PublisherID), kvevent.AppendLoadReport(nil, r)) != nil {
			o.loadsLost.Add(1)
		}
	}
	if o.dynamo != nil && r.Owner.Kind == kv.OwnerWorker && r.Worker.DeviceBlocksTotal > 0 {
		o.dynamo.PublishLoad(kvevent.ActiveLoad{
			Worker: r.Owner.Worker(), KVUsedBlocks: r.Worker.DeviceBlocksUsed, HasKVUsedBlocks: true,
		})
	}
}

// ownerStream is an owner's stream and the feeds that publish it.
type ownerStream struct {
	stream *residency.Stream
	// Both are nil before attach. A feed without its output stays nil.
	nats atomic.Pointer[nats.Feed]
	http atomic.Pointer[httpfeed.Feed]
}

func newOwnerStream(owner kv.Owner) *ownerStream {
	return &ownerStream{stream: residency.NewStream(owner, nil)}
}

// attach publishes the stream over NATS, if there is one, and HTTP. Both feeds have one publisher
// id, so that a consumer of both sees one publisher. The first announcements let consumers ask
// for earlier events. After an error the caller calls close.
func (s *ownerStream) attach(o *outputs, meta publisher.Meta) error {
	var id uint64 // of the publisher, the same for both feeds; 0: the HTTP feed draws one
	if o.nats != nil {
		f, err := o.nats.NewFeed(s.stream.Owner(), meta)
		if err != nil {
			return err
		}
		s.nats.Store(f)
		id = f.PublisherID()
		if err := s.addFeed(f, f.Attach, s.stream); err != nil {
			return err
		}
	}
	if o.http == nil {
		return nil
	}
	f, err := o.http.NewFeed(id, s.stream.Owner(), meta)
	if err != nil {
		return err
	}
	s.http.Store(f)
	return s.addFeed(f, f.Attach, s.stream)
}

// addFeed sends the stream's events to feed, and attaches the feed to the stream's state.
func (s *ownerStream) addFeed(feed residency.Sink, attach func(publisher.Source) error, src publisher.Source) error {
	if err := s.stream.AddSink(feed); err != nil {
		return fmt.Errorf("feed of %s: %w", s.stream.Owner(), err)
	}
	return attach(src)
}

// publisherID returns the id that the stream is published under, 0 before attach.
func (s *ownerStream) publisherID() uint64 {
	if f := s.nats.Load(); f != nil {
		return f.PublisherID()
	}
	if f := s.http.Load(); f != nil {
		return f.PublisherID()
	}
	return 0
}

// close announces that the owner is gone.
func (s *ownerStream) close() (err error) {
	if f := s.nats.Load(); f != nil {
		err = f.Close()
	}
	if f := s.http.Load(); f != nil {
		f.Close()
	}
	return err
}
