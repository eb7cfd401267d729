package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	// pullMessages is how many messages one request asks for.
	pullMessages = 256
	// A reader is behind when more than behindMessages messages are pending. It has
	// caught up when at most caughtUpMessages are.
	behindMessages   = 4096
	caughtUpMessages = 64
	// streamTimeout bounds one request to JetStream. firstPause and lastPause bound the
	// pause between two attempts to read.
	streamTimeout = 5 * time.Second
	firstPause    = 250 * time.Millisecond
	lastPause     = 10 * time.Second
	// Limits of a stream that the router creates.
	streamAge   = time.Hour
	streamBytes = 1 << 30
)

// streamReader reads events and announcements from a JetStream stream, in order, from a
// position on. A gap in the event ids shows the receiver which events the stream deleted.
type streamReader struct {
	cluster, name string
	log           *zap.Logger
	conn          *nats.Conn
	wake          func()

	frames     chan source.Frame
	resume     chan uint64 // room for one
	resumeOnce sync.Once
	// behind is true while the reader delivers old messages or none.
	behind        atomic.Bool
	failures      atomic.Uint64
	snapshotBytes atomic.Uint64
	// replacements counts loads that began again with a newer snapshot, bucketLimited the saves for which the
	// server had less room than they asked for.
	replacements, bucketLimited atomic.Uint64
	// limitedRoom is the room that the last warning named, in bytes of a snapshot. 0: the last save got the room
	// that it asked for.
	limitedRoom atomic.Int64
	// serverTime is the server's time at the local time local, for the ages of messages. Only
	// the reading goroutine uses them.
	serverTime, localTime time.Time

	ctx  context.Context
	stop context.CancelFunc
}

// newStreamReader returns a reader that is behind until it has caught up with the stream. The caller
// sets conn and starts run. wake is called when behind changes.
func newStreamReader(o *Options, wake func()) *streamReader {
	r := &streamReader{cluster: o.Cluster, name: o.Stream, log: o.Log, wake: wake,
		frames: make(chan source.Frame), resume: make(chan uint64, 1)}
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.behind.Store(true)
	r.wake()
	return r
}

// run waits for Resume and delivers the stream's messages after its position, until stop. After a
// failure it reads on behind the last delivered message.
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
		if last != before { // this read has delivered messages
			pauses.Reset()
		}
		r.log.Warn("reading the event stream failed; retrying", zap.String("stream", r.name), zap.Error(err))
		backoff.Wait(r.ctx, pauses.NextBackOff())
	}
}

// read delivers the messages of the JetStream stream after position last as frames, until an error.
// It moves last to the position of each delivered message, so that the next read goes on there. It
// calls setBehind(true) while many messages are pending: the router then works with old events.
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
		f := source.Frame{Data: m.Data(), Position: meta.Sequence.Stream, Age: r.age(meta.Timestamp, time.Now())}
		var ours bool
		if f.Kind, ours = r.kind(m.Subject()); ours {
			select {
			case r.frames <- f:
			case <-r.ctx.Done():
				return r.ctx.Err()
			}
		}
		*last = f.Position
		switch {
		case meta.NumPending > behindMessages:
			r.setBehind(true)
		case meta.NumPending <= caughtUpMessages:
			r.setBehind(false)
		}
	}
}

// kind returns the kind of a message. ours is false for a subject that is not the cluster's: a stream without filters may have
// such messages of a time when it had more subjects, or of streams that it copies, and may get more subjects while it is read.
func (r *streamReader) kind(subject string) (kind source.FrameKind, ours bool) {
	switch {
	case strings.HasPrefix(subject, strings.TrimSuffix(kvevent.AllEventsSubject(r.cluster), "*")):
		return source.FrameEvents, true
	case strings.HasPrefix(subject, strings.TrimSuffix(kvevent.AllAnnounceSubject(r.cluster), "*")):
		return source.FrameAnnouncement, true
	}
	return 0, false
}

// age returns how long ago a message was stored, by the server's clock if it is known.
func (r *streamReader) age(stored, now time.Time) time.Duration {
	if !r.serverTime.IsZero() {
		now = r.serverTime.Add(now.Sub(r.localTime))
	}
	return max(0, now.Sub(stored))
}

// consumer creates an ordered JetStream consumer of the messages after position last. It moves last
// from 0, which asks for new messages only, to the end of the stream. It moves a position beyond
// the end, which is of an earlier stream of this name, to the start. It also notes the server's
// time, from which the age of messages is counted.
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
	r.serverTime, r.localTime = info.TimeStamp, time.Now()
	state := info.State
	switch {
	case *last == 0:
		*last = state.LastSeq
	case *last > state.LastSeq:
		*last = max(state.FirstSeq, 1) - 1
	}
	// A consumer without messages reports nothing.
	r.setBehind(state.LastSeq-*last > caughtUpMessages)
	return stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: r.filters(info.Config.Subjects),
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:    *last + 1,
		// After that many failed resets read fails, and run creates another consumer.
		MaxResetAttempts:  3,
		InactiveThreshold: time.Minute,
	})
}

// filters returns the filter subjects of a consumer of a stream with these subjects: none when the stream has the cluster's
// subjects alone. With filters the server searches the stream for each message. It took milliseconds with 3,600 publishers, so
// that a router never caught up.
func (r *streamReader) filters(subjects []string) []string {
	wanted := kvevent.StreamSubjects(r.cluster)
	if slices.Equal(slices.Sorted(slices.Values(subjects)), slices.Sorted(slices.Values(wanted))) {
		return nil
	}
	return wanted
}

// open returns the cluster's stream, and creates a missing one with default limits.
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
		return nil, fmt.Errorf("create stream %s: %w", r.name, err)
	}
	return stream, nil
}

// withoutJetStream explains the error of a server without JetStream.
func withoutJetStream(err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("the server has no JetStream, or not for this account: %w", err)
	}
	return err
}

// setBehind sets behind, and wakes the Source after a change.
func (r *streamReader) setBehind(behind bool) {
	if r.behind.Swap(behind) != behind {
		r.wake()
	}
}

var _ source.Resumer = (*Source)(nil)

// Resume implements source.Resumer. Without JetStream it does nothing.
func (n *Source) Resume(position uint64) {
	if n.stream != nil {
		n.stream.resumeOnce.Do(func() { n.stream.resume <- position })
	}
}
