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

// outputs are where the streams of a node are told. The native stream, of each
// owner by itself, goes over NATS and HTTP; to those who know workers only, each
// worker's blocks go together with its pool's (rankOutput).
type outputs struct {
	cfg    *Config
	server *nats.Embedded // nil: there is none inside
	nats   *nats.Conn     // nil: there is none
	http   *httpfeed.Hub  // nil: there is none
	dynamo *dynamo.Plane  // nil: there is none
	log    *zap.Logger
	// tokens is nil until a stream in the engines' format wants them.
	tokens       atomic.Pointer[tokens.Table]
	zmqFailed    atomic.Uint64 // streams in the engines' format that could not be made
	dynamoFailed atomic.Uint64 // ranks that Dynamo's routers could not be told of
	withoutPool  atomic.Uint64 // ranks that are told without their pool's blocks
	loadsLost    atomic.Uint64 // load reports that NATS did not take
}

// openOutputs connects. An error leaves nothing open.
func openOutputs(ctx context.Context, cfg *Config, log *zap.Logger) (*outputs, error) {
	o := &outputs{cfg: cfg, log: log}
	if err := o.open(ctx); err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

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

// close ends what is told: the streams must have ended before.
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

// Numbers of file descriptors. libzmq aborts the process when it finds none for a context or
// a socket, so that a session reserves those of its streams before they open.
const (
	// rankDescriptors follow an engine's events, replays included.
	rankDescriptors = 20
	// zmqDescriptors publish a stream in the engines' format, to some peers.
	zmqDescriptors = 20
	// MaxRankDescriptors are the most that the streams of one rank take.
	MaxRankDescriptors = rankDescriptors + zmqDescriptors
)

// descriptors is what the event streams of an engine that said hello take.
func (o *outputs) descriptors(h *proto.Hello) (n int) {
	if h.EventsEndpoint != "" {
		n += rankDescriptors
	}
	if bind, err := o.sinkEndpoint(h); bind != "" && err == nil {
		n += zmqDescriptors
	}
	return n
}

// tokenTable is the table of the tokens of blocks, made when it is first wanted.
func (o *outputs) tokenTable() *tokens.Table {
	if t := o.tokens.Load(); t != nil {
		return t
	}
	o.tokens.CompareAndSwap(nil, tokens.New(o.cfg.TokenMemory))
	return o.tokens.Load()
}

// tokenSink is who wants the tokens of blocks now; nil: nobody.
func (o *outputs) tokenSink() tokens.Sink {
	if t := o.tokens.Load(); t != nil {
		return t
	}
	return nil
}

// publishLoad tells how busy an owner is.
func (o *outputs) publishLoad(r *kvevent.LoadReport) {
	if o.http != nil {
		o.http.PublishLoad(r)
	}
	if o.nats != nil {
		// One that is lost is followed by the next in a second.
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

// statusSource lets a stream answer the questions of what publishes it.
type statusSource struct{ statusStream }

// statusStream is a stream of either kind.
type statusStream interface {
	Owner() kv.Owner
	Status() residency.Status
	Snapshot() (events []kvevent.RouterEvent, last, digest uint64)
}

// Status implements publisher.Source.
func (s statusSource) Status() publisher.Status { return publisher.Status(s.statusStream.Status()) }

// ownerStream is one owner's stream and the feeds that publish it.
type ownerStream struct {
	stream *residency.Stream
	// The feeds are nil before attach, and where there is no such output.
	nats atomic.Pointer[nats.Feed]
	http atomic.Pointer[httpfeed.Feed]
}

func newOwnerStream(owner kv.Owner) *ownerStream {
	return &ownerStream{stream: residency.NewStream(owner, nil)}
}

// attach publishes the stream. What it had before, the first announcements tell
// consumers to ask for. What an error leaves is for close.
func (s *ownerStream) attach(o *outputs, meta publisher.Meta) error {
	src := statusSource{s.stream}
	var id uint64
	if o.nats != nil {
		f, err := o.nats.NewFeed(s.stream.Owner(), meta)
		if err != nil {
			return err
		}
		s.nats.Store(f)
		id = f.PublisherID()
		if err := s.join(f, f.Attach, src); err != nil {
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
	return s.join(f, f.Attach, src)
}

func (s *ownerStream) join(feed residency.Sink, attach func(publisher.Source) error, src publisher.Source) error {
	if err := s.stream.AddSink(feed); err != nil {
		return fmt.Errorf("feed of %s: %w", s.stream.Owner(), err)
	}
	return attach(src)
}

// publisherID is the id under which the stream is published, 0 before it is.
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
