package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/backoff"
	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/publisher"
)

// JetStream says how a stream of the server keeps events and announcements, so that a
// router can read on where it stopped. The zero value is ready for use.
//
// The stream takes every message on the cluster's subjects. So a publisher only makes the
// stream. It waits for no acknowledgement: a message that the stream lost is a gap in the
// ids like any other.
type JetStream struct {
	// Stream is the stream's name; default kvevent.StreamName of the cluster.
	Stream string
	// MaxAge is the time for which a message is kept, at least 1 s; default 1 h.
	MaxAge time.Duration
	// MaxBytes bounds the kept bytes, at least 1 MiB; default 1 GiB. The oldest messages go
	// first.
	MaxBytes int64
	// Replicas is the number of servers that keep the stream, 1..5; default 1.
	Replicas int
}

const (
	defaultStreamAge   = time.Hour
	defaultStreamBytes = 1 << 30
	minStreamBytes     = 1 << 20
	maxStreamReplicas  = 5
	// streamTimeout bounds one try to make the stream. The pauses between tries double from
	// firstRetry up to lastRetry.
	streamTimeout = 5 * time.Second
	firstRetry    = time.Second
	lastRetry     = 30 * time.Second
)

var streamName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// Validate reports the first field that is out of range.
func (j *JetStream) Validate() error {
	switch {
	case j.Stream != "" && !streamName.MatchString(j.Stream):
		return fmt.Errorf("nats jetstream stream %q: want 1 to 128 of the characters A-Z a-z 0-9 _ -", j.Stream)
	case j.MaxAge != 0 && j.MaxAge < time.Second:
		return fmt.Errorf("nats jetstream max age: %v is below 1s", j.MaxAge)
	case j.MaxBytes != 0 && j.MaxBytes < minStreamBytes:
		return fmt.Errorf("nats jetstream max bytes: %d is below %d", j.MaxBytes, minStreamBytes)
	case j.Replicas < 0 || j.Replicas > maxStreamReplicas:
		return fmt.Errorf("nats jetstream replicas: %d is not in 1..%d", j.Replicas, maxStreamReplicas)
	}
	return nil
}

// streamKeeper makes the stream again at each connection: the server may have lost it, or
// may be another one.
type streamKeeper struct {
	config   jetstream.StreamConfig
	log      *zap.Logger
	check    publisher.Alarm
	ready    atomic.Bool
	failures atomic.Uint64

	stop    context.CancelFunc
	running sync.WaitGroup
}

// newStreamKeeper returns the keeper of the stream that j describes, with defaults for its zero
// fields. The keeper does nothing before start or ensure.
func newStreamKeeper(cluster string, j JetStream, log *zap.Logger) *streamKeeper {
	c := jetstream.StreamConfig{
		Name:        j.Stream,
		Description: "Blockyard: residency events and announcements of cluster " + cluster,
		Subjects:    kvevent.StreamSubjects(cluster),
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		Storage:     jetstream.FileStorage,
		MaxAge:      j.MaxAge,
		MaxBytes:    j.MaxBytes,
		Replicas:    max(1, j.Replicas),
		// No publisher waits for acknowledgements, and event ids show duplicates.
		NoAck: true,
	}
	c.Name = cmp.Or(c.Name, kvevent.StreamName(cluster))
	c.MaxAge = cmp.Or(c.MaxAge, defaultStreamAge)
	// The server refuses a window for duplicates that is longer than the age.
	c.Duplicates = min(c.MaxAge, 2*time.Minute)
	c.MaxBytes = cmp.Or(c.MaxBytes, defaultStreamBytes)
	return &streamKeeper{config: c, log: log, check: publisher.NewAlarm(), stop: func() {}}
}

// start keeps the stream until close.
func (k *streamKeeper) start(conn *nats.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	k.stop = cancel
	k.running.Go(func() { k.run(ctx, conn) })
}

func (k *streamKeeper) close() {
	k.stop()
	k.running.Wait()
}

// run makes the JetStream stream at each connection, which raises check, and tries again after a
// failure, with growing pauses, until ctx ends.
func (k *streamKeeper) run(ctx context.Context, conn *nats.Conn) {
	pauses := backoff.Doubling(firstRetry, lastRetry)
	retry := time.NewTimer(firstRetry)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.check:
			pauses.Reset()
		case <-retry.C:
			if k.ready.Load() { // a check has made the stream in the meantime
				continue
			}
		}
		if err := k.ensure(ctx, conn); err != nil && ctx.Err() == nil {
			k.log.Warn("JetStream does not keep the events yet; the agent tries again", zap.Error(err))
			retry.Reset(pauses.NextBackOff())
		}
	}
}

// ensure makes the JetStream stream that keeps the events, or gives an existing one the configured
// limits. k.ready is true after success. A failure is counted and returned; the caller tries again.
func (k *streamKeeper) ensure(ctx context.Context, conn *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	js, err := jetstream.New(conn)
	if err == nil {
		_, err = js.CreateOrUpdateStream(ctx, k.config)
	}
	k.ready.Store(err == nil)
	if errors.Is(err, nats.ErrNoResponders) {
		err = fmt.Errorf("the server has no JetStream, or not for this account: %w", err)
	}
	if err != nil {
		k.failures.Add(1)
		return fmt.Errorf("nats jetstream stream %s: %w", k.config.Name, err)
	}
	return nil
}
