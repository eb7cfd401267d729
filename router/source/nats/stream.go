package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

// Bounds of reading a stream.
const (
	// pullMessages is how many messages are asked for at a time.
	pullMessages = 256
	// A reader that this many messages lie before is behind, until it has come
	// within caughtUp of the end.
	farBehind = 4096
	caughtUp  = 64
	// streamTimeout bounds one request to JetStream, firstPause and lastPause the
	// time between two tries to read.
	streamTimeout = 5 * time.Second
	firstPause    = 250 * time.Millisecond
	lastPause     = 10 * time.Second
	// Limits of a stream that no publisher has made.
	streamAge   = time.Hour
	streamBytes = 1 << 30
)

// streamReader reads events and announcements from a JetStream stream, in order
// and from a position on. What the stream has thrown away, or lost, is missed by
// the ids of the events, like any other loss.
type streamReader struct {
	cluster, name string
	log           *zap.Logger
	conn          *nats.Conn
	wake          func()

	frames chan source.Frame
	resume chan uint64 // room for one
	once   sync.Once
	// behind is set while what comes is old, or nothing comes.
	behind   atomic.Bool
	failures atomic.Uint64
	saved    atomic.Uint64
	// clock is what the server's clock said at local, for the ages of messages. They
	// belong to the reading goroutine.
	clock, local time.Time

	ctx  context.Context
	stop context.CancelFunc
}

func newStreamReader(o *Options, wake func()) *streamReader {
	r := &streamReader{cluster: o.Cluster, name: o.Stream, log: o.Log, wake: wake,
		frames: make(chan source.Frame), resume: make(chan uint64, 1)}
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.behind.Store(true)
	r.wake()
	return r
}

// run reads until stop, from where Resume says.
func (r *streamReader) run() {
	var last uint64
	select {
	case last = <-r.resume:
	case <-r.ctx.Done():
		return
	}
	pauses := backoff.Doubling(firstPause, lastPause)
	for r.ctx.Err() == nil {
		before := last
		err := r.read(&last)
		if r.ctx.Err() != nil {
			return
		}
		r.failures.Add(1)
		r.setBehind(true)
		if last != before {
			pauses.Reset()
		}
		r.log.Warn("the event stream cannot be read; trying on", zap.String("stream", r.name), zap.Error(err))
		r.wait(pauses.NextBackOff())
	}
}

func (r *streamReader) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.ctx.Done():
	}
}

// read delivers messages until an error, and keeps the position of the last one
// in last.
func (r *streamReader) read(last *uint64) error {
	consumer, err := r.consumer(last)
	if err != nil {
		return withoutJetStream(err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(pullMessages))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(r.ctx))
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		f := source.Frame{Kind: source.FrameEvents, Data: m.Data(), Position: meta.Sequence.Stream, Age: r.age(meta.Timestamp, time.Now())}
		if strings.HasPrefix(m.Subject(), strings.TrimSuffix(kvevent.AllAnnounceSubject(r.cluster), "*")) {
			f.Kind = source.FrameAnnouncement
		}
		select {
		case r.frames <- f:
		case <-r.ctx.Done():
			return r.ctx.Err()
		}
		*last = f.Position
		switch {
		case meta.NumPending > farBehind:
			r.setBehind(true)
		case meta.NumPending <= caughtUp:
			r.setBehind(false)
		}
	}
}

// age is how long ago a message was stored, by the server's clock. A server that does
// not say its time is taken to have ours.
func (r *streamReader) age(stored, now time.Time) time.Duration {
	if !r.clock.IsZero() {
		now = r.clock.Add(now.Sub(r.local))
	}
	return max(0, now.Sub(stored))
}

// consumer makes an ordered consumer of what follows last. Position 0, and one
// that the stream never reached because it is another stream by now, are replaced
// by where to begin.
func (r *streamReader) consumer(last *uint64) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(r.ctx, streamTimeout)
	defer cancel()
	js, err := jetstream.New(r.conn)
	if err != nil {
		return nil, err
	}
	stream, err := r.open(ctx, js)
	if err != nil {
		return nil, err
	}
	info := stream.CachedInfo()
	r.clock, r.local = info.TimeStamp, time.Now()
	state := info.State
	switch {
	case *last == 0:
		*last = state.LastSeq
	case *last > state.LastSeq:
		*last = max(state.FirstSeq, 1) - 1
	}
	// A consumer delivers nothing for as long as nothing is sent, and says so by no
	// message.
	r.setBehind(state.LastSeq-*last > caughtUp)
	return stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: kvevent.StreamSubjects(r.cluster),
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:    *last + 1,
		// Beyond this, read begins again and looks at the stream.
		MaxResetAttempts:  3,
		InactiveThreshold: time.Minute,
	})
}

// open is the stream, made when there is none.
func (r *streamReader) open(ctx context.Context, js jetstream.JetStream) (jetstream.Stream, error) {
	stream, err := js.Stream(ctx, r.name)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return stream, err
	}
	stream, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name:        r.name,
		Description: "Blockyard: residency events and announcements of cluster " + r.cluster,
		Subjects:    kvevent.StreamSubjects(r.cluster),
		Storage:     jetstream.FileStorage,
		MaxAge:      streamAge,
		MaxBytes:    streamBytes,
		NoAck:       true,
	})
	if err != nil {
		return nil, fmt.Errorf("make it: %w", err)
	}
	return stream, nil
}

// withoutJetStream makes an error of JetStream say that there is none, if that is what
// it means.
func withoutJetStream(err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("the server has no JetStream, or not for this account: %w", err)
	}
	return err
}

func (r *streamReader) setBehind(behind bool) {
	if r.behind.Swap(behind) != behind {
		r.wake()
	}
}

var _ source.Resumer = (*Source)(nil)

// Resume is the Resumer's. Without JetStream it does nothing: what arrives
// arrives.
func (n *Source) Resume(position uint64) {
	if n.stream != nil {
		n.stream.once.Do(func() { n.stream.resume <- position })
	}
}
