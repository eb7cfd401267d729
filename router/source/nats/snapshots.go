package nats

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/router/source"
)

const (
	// firstSnapshotRoom is the most bytes of a snapshot in a new bucket, maxSnapshotRoom in any. A bucket
	// has room for two snapshots, and grows for a larger one. On a server with less room the bucket is
	// smaller, down to minSnapshotRoom.
	firstSnapshotRoom = 512 << 20
	maxSnapshotRoom   = 64 << 30
	minSnapshotRoom   = 1 << 20
	// snapshotMaxAge is how long the bucket keeps a snapshot, finished or not.
	snapshotMaxAge = 24 * time.Hour
	snapshotObject = "index"
	// snapshotBuffer is the size of one read or write.
	snapshotBuffer = 128 << 10
	connectPoll    = 50 * time.Millisecond
	// loadTimeout bounds the first request of a load. A Read returns after readPoll without bytes.
	loadTimeout = 15 * time.Second
	readPoll    = time.Second
	// maxReplacements is how many times a load begins again because its snapshot was replaced.
	maxReplacements = 3
	// purgeTimeout bounds the removal of an unfinished snapshot.
	purgeTimeout = time.Second
	// remainsMaxAge is the age of the last part at which an unfinished snapshot is purged. A save in
	// progress has younger parts, with room for clocks that differ.
	remainsMaxAge = 12 * time.Minute
)

var errNoJetStream = errors.New("snapshots need JetStream")

// errReplaced ends a load whose snapshot another router has replaced.
var errReplaced = errors.New("the snapshot was replaced while it was loaded")

var _ source.SnapshotStore = (*Source)(nil)

// SaveSnapshot implements source.SnapshotStore: it stores what write writes as the cluster's
// snapshot, in parts of 128 KiB. The bucket grows if two snapshots of size bytes do not fit. Where the
// server has not that much room, the bucket keeps or gets what there is, and a larger snapshot is an
// error. SaveSnapshot returns within purgeTimeout of the end of ctx. The previous snapshot stays until
// the new one is complete.
func (n *Source) SaveSnapshot(ctx context.Context, size uint64, write func(io.Writer) error) error {
	bucket, room, err := n.roomyBucket(ctx, snapshotRoom(size))
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
// a connection, and then for bytes, until ctx ends. When another router replaces the snapshot meanwhile,
// LoadSnapshot begins again with the new one, at most maxReplacements times.
func (n *Source) LoadSnapshot(ctx context.Context, read func(io.Reader) error) error {
	if err := n.waitConnected(ctx); err != nil {
		return fmt.Errorf("load snapshot: %w", err)
	}
	bucket, err := n.bucket(ctx)
	if err != nil {
		return fmt.Errorf("load snapshot: %w", err)
	}
	for replacements := 0; ; replacements++ {
		err := loadOnce(ctx, bucket, read)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errReplaced) || replacements == maxReplacements {
			return fmt.Errorf("load snapshot: %w", err)
		}
		n.stream.replacements.Add(1)
	}
}

// loadOnce passes the stored snapshot to read. The error is errReplaced when the snapshot was replaced before
// all of it was read.
func loadOnce(outer context.Context, bucket jetstream.ObjectStore, read func(io.Reader) error) (err error) {
	ctx, stop := context.WithCancel(outer)
	defer stop()
	requests := &readContext{Context: ctx}
	requests.wait.Store(int64(loadTimeout))
	object, err := bucket.Get(requests, snapshotObject)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return source.ErrNoSnapshot
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, object.Close()) }()
	info, err := object.Info()
	if err != nil {
		return err
	}
	// The server purges the parts of a replaced snapshot, and the reader waits for them in vain.
	watcher, err := bucket.Watch(requests)
	if err != nil {
		return err
	}
	var replaced atomic.Bool
	go func() {
		for now := range watcher.Updates() { // the end of ctx closes them
			if now != nil && now.Name == snapshotObject && now.NUID != info.NUID {
				replaced.Store(true)
				stop()
			}
		}
	}()
	requests.wait.Store(int64(readPoll))
	if err = read(object); err == nil {
		// The store verifies the checksum at the end of the object.
		_, err = io.Copy(io.Discard, object)
	}
	if err != nil && outer.Err() == nil {
		if replaced.Load() {
			return errReplaced
		}
		// The end of a replaced snapshot may have looked like damage before the watcher has told.
		if now, infoErr := bucket.GetInfo(outer, snapshotObject); infoErr == nil && now.NUID != info.NUID {
			return errReplaced
		}
	}
	return err
}

// readContext has a deadline that is always wait away: of one request, and of each Read. Without a deadline
// an object would get one of five seconds for all of its bytes.
type readContext struct {
	context.Context
	wait atomic.Int64
}

// Deadline implements context.Context.
func (r *readContext) Deadline() (deadline time.Time, ok bool) {
	return time.Now().Add(time.Duration(r.wait.Load())), true
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
	return jetstream.New(n.conn, jetstream.WithDefaultTimeout(n.requestTimeout))
}

// bucket returns the bucket of snapshots. The error is ErrNoSnapshot when there is none.
func (n *Source) bucket(ctx context.Context) (jetstream.ObjectStore, error) {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	js, err := n.jetStream()
	if err != nil {
		return nil, err
	}
	bucket, err := js.ObjectStore(ctx, kvevent.SnapshotBucket(n.cluster))
	if errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, source.ErrNoSnapshot
	}
	return bucket, withoutJetStream(err)
}

// roomyBucket returns the bucket of snapshots and the most bytes that a snapshot may have there. It makes a
// missing bucket, and makes a small one larger, for snapshots of want bytes, or of fewer where the
// server has not that much room.
func (n *Source) roomyBucket(ctx context.Context, want int64) (bucket jetstream.ObjectStore, room int64, err error) {
	bucket, err = n.bucket(ctx)
	if err != nil && !errors.Is(err, source.ErrNoSnapshot) {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	js, jsErr := n.jetStream()
	if jsErr != nil {
		return nil, 0, jsErr
	}
	name := kvevent.SnapshotBucket(n.cluster)
	if err == nil {
		room, err = n.growBucket(ctx, js, "OBJ_"+name, want)
		return bucket, room, err
	}
	room, err = n.fitRoom(want, minSnapshotRoom, func(room int64) (err error) {
		bucket, err = js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{
			Bucket:      name,
			Description: "Blockyard: index snapshots of the routers of cluster " + n.cluster,
			TTL:         snapshotMaxAge,
			MaxBytes:    bucketBytes(room),
			Storage:     jetstream.FileStorage,
		})
		return err
	})
	return bucket, room, err
}

// growBucket raises the limit of the stream of a bucket for snapshots of want bytes, or as far as the
// server has room. A larger limit, or none, stays. It returns the most bytes of a snapshot.
func (n *Source) growBucket(ctx context.Context, js jetstream.JetStream, stream string, want int64) (room int64, err error) {
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return 0, err
	}
	c := s.CachedInfo().Config
	if c.MaxBytes <= 0 || c.MaxBytes >= bucketBytes(want) {
		return want, nil
	}
	present := max(0, (c.MaxBytes-snapshotBuffer)/2)
	return n.fitRoom(want, present, func(room int64) error {
		if room == present {
			return nil
		}
		c.MaxBytes = bucketBytes(room)
		_, err := js.UpdateStream(ctx, c)
		return err
	})
}

// fitRoom calls set with want, and with half as much again and again while the server has not that much
// room, down to least. It returns the room of the last call.
func (n *Source) fitRoom(want, least int64, set func(room int64) error) (room int64, err error) {
	for room = want; ; room = max(room/2, least) {
		if err = set(room); !lacksRoom(err) || room <= least {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("bucket of %d bytes: %w", bucketBytes(room), err)
	}
	if room == want {
		n.stream.limitedRoom.Store(0)
		return room, nil
	}
	n.stream.bucketLimited.Add(1)
	// Each save tries again. The log warns once while the room stays the same.
	if n.stream.limitedRoom.Swap(room) != room {
		n.log.Warn("the server has no room for a bucket of snapshots of this size", zap.Int64("want_bytes", bucketBytes(want)), zap.Int64("bucket_bytes", bucketBytes(room)))
	}
	return room, nil
}

// lacksRoom reports whether an error says that a server or an account has no room for a stream.
func lacksRoom(err error) bool {
	// JSAccountResourcesExceededErr and others of its kind. A cluster without room finds no peers, which
	// may have other reasons too.
	const accountLimit, noPeers, resources, storage, streamLimit = 10002, 10005, 10023, 10047, 10122
	var of *jetstream.APIError
	if !errors.As(err, &of) {
		return false
	}
	switch of.ErrorCode {
	case accountLimit, resources, storage, streamLimit:
		return true
	case noPeers:
		return strings.Contains(of.Description, "insufficient storage")
	}
	return false
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
		return 0, fmt.Errorf("snapshot has more than %d bytes, the room in its bucket", l.room)
	}
	l.left -= int64(len(b))
	return l.w.Write(b)
}
