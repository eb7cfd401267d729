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
	// firstSnapshotRoom is the most bytes of a snapshot in a new bucket, maxSnapshotRoom in any. A bucket
	// has room for two snapshots, and grows for a larger one.
	firstSnapshotRoom = 512 << 20
	maxSnapshotRoom   = 64 << 30
	// snapshotMaxAge is how long the bucket keeps a snapshot, finished or not.
	snapshotMaxAge = 24 * time.Hour
	snapshotObject = "index"
	// snapshotBuffer is the size of one read or write.
	snapshotBuffer = 128 << 10
	connectPoll    = 50 * time.Millisecond
	readTimeout    = 15 * time.Second // of one Read of a snapshot
	// purgeTimeout bounds the removal of an unfinished snapshot.
	purgeTimeout = time.Second
	// remainsMaxAge is the age of the last part at which an unfinished snapshot is purged. A save in
	// progress has younger parts, with room for clocks that differ.
	remainsMaxAge = 12 * time.Minute
)

var errNoJetStream = errors.New("snapshots need JetStream")

var _ source.SnapshotStore = (*Source)(nil)

// SaveSnapshot implements source.SnapshotStore: it stores what write writes as the cluster's
// snapshot, in parts of 128 KiB. The bucket grows if two snapshots of size bytes do not fit.
// SaveSnapshot returns within purgeTimeout of the end of ctx. The previous snapshot stays until
// the new one is complete.
func (n *Source) SaveSnapshot(ctx context.Context, size uint64, write func(io.Writer) error) error {
	room := snapshotRoom(size)
	bucket, err := n.bucket(ctx, room)
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
	if end, ok := ctx.Deadline(); ok { // without one, nats.go waits five seconds for each part
		putCtx, cancel = context.WithDeadline(putCtx, end.Add(purgeTimeout))
	}
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		reader.CloseWithError(ctx.Err())
		time.AfterFunc(purgeTimeout, cancel)
	})()
	written := make(chan error, 1)
	go func() { written <- writeSnapshot(writer, room, write) }()
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

// snapshotRoom returns how many bytes a snapshot of about size bytes may have.
func snapshotRoom(size uint64) int64 {
	room := int64(firstSnapshotRoom)
	for room < maxSnapshotRoom && uint64(room) < size {
		room *= 2
	}
	return room
}

// bucketBytes is the limit of a bucket for snapshots of room bytes.
func bucketBytes(room int64) int64 { return 2*room + snapshotBuffer }

// writeSnapshot passes the bytes of write, at most room, to the pipe. Then it closes the
// pipe with the error of write, so that the reader stores no unfinished snapshot.
func writeSnapshot(pipe *io.PipeWriter, room int64, write func(io.Writer) error) error {
	buffered := bufio.NewWriterSize(&limitedWriter{w: pipe, left: room, room: room}, snapshotBuffer)
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
// a connection, and then for bytes, until ctx ends or a Read lasts for readTimeout.
func (n *Source) LoadSnapshot(ctx context.Context, read func(io.Reader) error) (err error) {
	if err := n.waitConnected(ctx); err != nil {
		return fmt.Errorf("load snapshot: %w", err)
	}
	bucket, err := n.bucket(ctx, 0)
	if err != nil {
		return fmt.Errorf("load snapshot: %w", err)
	}
	object, err := bucket.Get(readContext{ctx}, snapshotObject)
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

// readContext has a deadline that is always readTimeout away: of each Read. Without a deadline an object
// would get one of five seconds for all of its bytes.
type readContext struct{ context.Context }

// Deadline implements context.Context.
func (readContext) Deadline() (deadline time.Time, ok bool) { return time.Now().Add(readTimeout), true }

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
	return jetstream.New(n.conn, jetstream.WithDefaultTimeout(n.requestTimeout))
}

// bucket returns the bucket of snapshots, with a limit for snapshots of room bytes. With room 0 the bucket
// stays as it is, and the error is ErrNoSnapshot when there is none.
func (n *Source) bucket(ctx context.Context, room int64) (jetstream.ObjectStore, error) {
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
	case !isMissing && err == nil && room > 0:
		return bucket, growBucket(ctx, js, name, bucketBytes(room))
	case !isMissing:
		return bucket, withoutJetStream(err)
	case room == 0:
		return nil, source.ErrNoSnapshot
	}
	return js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{
		Bucket:      name,
		Description: "Blockyard: index snapshots of the routers of cluster " + n.cluster,
		TTL:         snapshotMaxAge,
		MaxBytes:    bucketBytes(room),
		Storage:     jetstream.FileStorage,
	})
}

// growBucket raises the limit of a bucket to a number of bytes. A larger limit, or none, stays. The error
// says that the server has not that much room.
func growBucket(ctx context.Context, js jetstream.JetStream, name string, bytes int64) error {
	stream, err := js.Stream(ctx, "OBJ_"+name)
	if err != nil {
		return err
	}
	c := stream.CachedInfo().Config
	if c.MaxBytes <= 0 || c.MaxBytes >= bytes {
		return nil
	}
	c.MaxBytes = bytes
	if _, err := js.UpdateStream(ctx, c); err != nil {
		return fmt.Errorf("bucket %s of %d bytes: %w", name, bytes, err)
	}
	return nil
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

// limitedWriter fails a write of more than left bytes, of room at first.
type limitedWriter struct {
	w          io.Writer
	left, room int64
}

// Write implements io.Writer.
func (l *limitedWriter) Write(b []byte) (int, error) {
	if int64(len(b)) > l.left {
		return 0, fmt.Errorf("more than %d bytes", l.room)
	}
	l.left -= int64(len(b))
	return l.w.Write(b)
}
