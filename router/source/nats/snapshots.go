package nats

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

const (
	// maxSnapshotBytes bounds one snapshot. The bucket has room for two.
	maxSnapshotBytes = 512 << 20
	// snapshotMaxAge is how long the bucket keeps a snapshot, finished or not.
	snapshotMaxAge = 24 * time.Hour
	snapshotObject = "index"
	// snapshotBuffer is the size of one read or write.
	snapshotBuffer = 128 << 10
	connectPoll    = 50 * time.Millisecond
	// purgeTimeout bounds the removal of an unfinished snapshot.
	purgeTimeout = time.Second
	// remainsMaxAge is the age at which an unfinished snapshot is purged. It is longer
	// than any save, with room for clocks that differ.
	remainsMaxAge = source.SnapshotSaveTimeout + 10*time.Minute
)

var errNoJetStream = errors.New("snapshots need JetStream")

var _ source.SnapshotStore = (*Source)(nil)

// SaveSnapshot implements source.SnapshotStore: it stores what write writes as the cluster's
// snapshot. It returns within purgeTimeout of the end of ctx. The previous snapshot stays until the
// new one is complete.
func (n *Source) SaveSnapshot(ctx context.Context, write func(io.Writer) error) error {
	bucket, err := n.bucket(ctx, true)
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	if err := n.purgeRemains(ctx, bucket, remainsMaxAge); err != nil {
		return fmt.Errorf("save snapshot: purge unfinished snapshots: %w", err)
	}
	reader, writer := io.Pipe()
	// The end of ctx ends the writing. Put then has purgeTimeout to purge the parts that
	// it has sent.
	putCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		reader.CloseWithError(ctx.Err())
		time.AfterFunc(purgeTimeout, cancel)
	})()
	written := make(chan error, 1)
	go func() { written <- writeSnapshot(writer, write) }()
	info, err := bucket.Put(putCtx, jetstream.ObjectMeta{Name: snapshotObject,
		Opts: &jetstream.ObjectMetaOptions{ChunkSize: snapshotBuffer}}, reader)
	reader.CloseWithError(err) // after a failed Put nobody reads: write must not block
	if writeErr := <-written; writeErr != nil {
		err = writeErr
	}
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	n.stream.snapshotBytes.Store(info.Size)
	return nil
}

// writeSnapshot passes the bytes of write, at most maxSnapshotBytes, to the pipe. Then it closes the
// pipe with the error of write, so that the reader stores no unfinished snapshot.
func writeSnapshot(pipe *io.PipeWriter, write func(io.Writer) error) error {
	buffered := bufio.NewWriterSize(&limitedWriter{w: pipe, left: maxSnapshotBytes}, snapshotBuffer)
	err := write(buffered)
	if err == nil {
		err = buffered.Flush()
	}
	pipe.CloseWithError(err)
	return err
}

// purgeRemains purges the parts of index snapshots whose save has not been finished, which the
// bucket would keep for a day. All parts of a snapshot are messages on one subject. A subject is
// purged if it is not that of the stored snapshot and its last part is older than age: a younger
// one may be of a save by another router.
func (n *Source) purgeRemains(ctx context.Context, bucket jetstream.ObjectStore, age time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	js, err := n.jetStream()
	if err != nil {
		return err
	}
	name := kvevent.SnapshotBucket(n.cluster)
	// OBJ_ and $O are JetStream's names for the stream of a bucket and its subjects.
	stream, err := js.Stream(ctx, "OBJ_"+name)
	if err != nil {
		return err
	}
	parts := "$O." + name + ".C."
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(parts+">"))
	if err != nil {
		return err
	}
	stored := "" // subject of the stored snapshot
	if object, err := bucket.GetInfo(ctx, snapshotObject); err == nil {
		stored = parts + object.NUID
	} else if !errors.Is(err, jetstream.ErrObjectNotFound) {
		return err
	}
	for subject := range info.State.Subjects {
		if subject == stored {
			continue
		}
		last, err := stream.GetLastMsgForSubject(ctx, subject)
		// Another router may have purged the subject.
		if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && time.Since(last.Time) < age {
			continue
		}
		if err == nil {
			err = stream.Purge(ctx, jetstream.WithPurgeSubject(subject))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// LoadSnapshot implements source.SnapshotStore: it passes the stored snapshot to read. It waits for
// a connection until ctx ends.
func (n *Source) LoadSnapshot(ctx context.Context, read func(io.Reader) error) (err error) {
	if err := n.waitConnected(ctx); err != nil {
		return fmt.Errorf("load snapshot: %w", err)
	}
	bucket, err := n.bucket(ctx, false)
	if err != nil {
		return fmt.Errorf("load snapshot: %w", err)
	}
	object, err := bucket.Get(ctx, snapshotObject)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return fmt.Errorf("load snapshot: %w", source.ErrNoSnapshot)
	}
	if err != nil {
		return fmt.Errorf("load snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, object.Close()) }()
	if err := read(object); err != nil {
		return fmt.Errorf("load snapshot: %w", err)
	}
	// The store verifies the checksum at the end of the object.
	if _, err := io.Copy(io.Discard, object); err != nil {
		return fmt.Errorf("load snapshot: %w", err)
	}
	return nil
}

// ForgetSnapshot implements source.SnapshotStore: it deletes the bucket of snapshots, if there is
// one.
func (n *Source) ForgetSnapshot(ctx context.Context) error {
	if err := n.waitConnected(ctx); err != nil {
		return fmt.Errorf("forget snapshot: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	js, err := n.jetStream()
	if err == nil {
		err = js.DeleteObjectStore(ctx, kvevent.SnapshotBucket(n.cluster))
	}
	isMissing := errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrBucketNotFound)
	if err != nil && !isMissing {
		return fmt.Errorf("forget snapshot: %w", err)
	}
	return nil
}

// jetStream returns a client of JetStream, or errNoJetStream without Options.JetStream.
func (n *Source) jetStream() (jetstream.JetStream, error) {
	if n.stream == nil {
		return nil, errNoJetStream
	}
	return jetstream.New(n.conn)
}

// bucket returns the bucket of snapshots. The error is ErrNoSnapshot when there is no
// bucket and create is false.
func (n *Source) bucket(ctx context.Context, create bool) (jetstream.ObjectStore, error) {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	js, err := n.jetStream()
	if err != nil {
		return nil, err
	}
	name := kvevent.SnapshotBucket(n.cluster)
	bucket, err := js.ObjectStore(ctx, name)
	isMissing := errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound)
	switch {
	case !isMissing:
		return bucket, withoutJetStream(err)
	case !create:
		return nil, source.ErrNoSnapshot
	}
	return js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{
		Bucket:      name,
		Description: "Blockyard: index snapshots of the routers of cluster " + n.cluster,
		TTL:         snapshotMaxAge,
		MaxBytes:    2*maxSnapshotBytes + snapshotBuffer,
		Storage:     jetstream.FileStorage,
	})
}

// waitConnected waits for a connection. It returns an error when ctx ends first.
func (n *Source) waitConnected(ctx context.Context) error {
	tick := time.NewTicker(connectPoll)
	defer tick.Stop()
	for !n.conn.IsConnected() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("not connected: %w", ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// limitedWriter fails a write of more than left bytes.
type limitedWriter struct {
	w    io.Writer
	left int
}

// Write implements io.Writer.
func (l *limitedWriter) Write(b []byte) (int, error) {
	if len(b) > l.left {
		return 0, fmt.Errorf("more than %d bytes", maxSnapshotBytes)
	}
	l.left -= len(b)
	return l.w.Write(b)
}
