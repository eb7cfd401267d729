package nats

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/blockyard-ai/blockyard/internal/kvevent"
	"github.com/blockyard-ai/blockyard/internal/waittest"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// writeUntil writes until that fails or ctx ends.
func writeUntil(ctx context.Context, w io.Writer) error {
	for ctx.Err() == nil {
		if _, err := w.Write(make([]byte, 64<<10)); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// TestSaveSnapshotEndsWithItsContext: a NATS that dies while a snapshot is saved
// does not keep the router from stopping.
func TestSaveSnapshotEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	s := sourcetest.StartServer(t, func(o *server.Options) { o.JetStream, o.StoreDir = true, dir })
	n := ConnectDurable(t, s.ClientURL())
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- n.SaveSnapshot(ctx, 0, func(w io.Writer) error {
			_, err := w.Write(make([]byte, 1<<20))
			s.Shutdown()
			s.WaitForShutdown()
			<-ctx.Done()
			return errors.Join(err, writeUntil(t.Context(), w))
		})
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Error("a snapshot was saved on a server that is gone")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("has not returned 18 s after the end of its context")
	}
}

// TestSaveThatRunsOutOfTimeKeepsTheFormer: the snapshot that was there stays, and
// nothing of the other one takes up room.
func TestSaveThatRunsOutOfTimeKeepsTheFormer(t *testing.T) {
	n := ConnectDurable(t, StartDurableServer(t))
	if err := n.SaveSnapshot(t.Context(), 0, func(w io.Writer) error { _, err := w.Write([]byte("good")); return err }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := n.SaveSnapshot(ctx, 0, func(w io.Writer) error {
		_, err := w.Write(make([]byte, 1<<20))
		cancel()
		return errors.Join(err, writeUntil(t.Context(), w))
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the second save: %v", err)
	}
	err = n.LoadSnapshot(t.Context(), func(r io.Reader) error {
		if b, err := io.ReadAll(r); string(b) != "good" || err != nil {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if parts := n.parts(t); len(parts) != 1 {
		t.Errorf("parts of %d snapshots are stored: %v", len(parts), parts)
	}
}

// TestLoadingHasNoTimeLimitOfARequest: a large snapshot takes longer.
func TestLoadingHasNoTimeLimitOfARequest(t *testing.T) {
	n := ConnectDurable(t, StartDurableServer(t))
	const size = 4 << 20 // more than arrives ahead of the reader
	if err := n.SaveSnapshot(t.Context(), 0, func(w io.Writer) error { _, err := w.Write(make([]byte, size)); return err }); err != nil {
		t.Fatal(err)
	}
	n.requestTimeout = 50 * time.Millisecond
	err := n.LoadSnapshot(t.Context(), func(r io.Reader) error {
		<-time.After(2 * n.requestTimeout)
		got, err := io.Copy(io.Discard, r)
		if got != size {
			t.Errorf("%d bytes of %d", got, size)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// parts are the numbers of stored messages of each snapshot, by subject.
func (n *Source) parts(t *testing.T) map[string]uint64 {
	t.Helper()
	js, err := n.jetStream()
	if err != nil {
		t.Fatal(err)
	}
	name := kvevent.SnapshotBucket(n.cluster)
	s, err := js.Stream(t.Context(), "OBJ_"+name)
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("$O."+name+".C.>"))
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Subjects
}

// TestRemainsOfSnapshotsAreSwept: parts that a router left when it died are purged
// once they are old; the present snapshot and one that may be in the making stay.
func TestRemainsOfSnapshotsAreSwept(t *testing.T) {
	n := ConnectDurable(t, StartDurableServer(t))
	if err := n.SaveSnapshot(t.Context(), 0, func(w io.Writer) error { _, err := w.Write([]byte("good")); return err }); err != nil {
		t.Fatal(err)
	}
	if err := n.conn.Publish("$O."+kvevent.SnapshotBucket(n.cluster)+".C.left", []byte("part")); err != nil {
		t.Fatal(err)
	}
	sourcetest.Eventually(t, "the part is stored", func() bool { return len(n.parts(t)) == 2 })
	bucket, err := n.bucket(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		age  time.Duration
		want int
	}{{remainsMaxAge, 2}, {0, 1}} {
		if err := n.purgeRemains(t.Context(), bucket, tc.age); err != nil {
			t.Fatal(err)
		}
		if parts := n.parts(t); len(parts) != tc.want {
			t.Errorf("age %v: parts of %d snapshots, want %d: %v", tc.age, len(parts), tc.want, parts)
		}
	}
	var got bytes.Buffer
	if err := n.LoadSnapshot(t.Context(), func(r io.Reader) error { _, err := got.ReadFrom(r); return err }); err != nil || got.String() != "good" {
		t.Errorf("%q, %v", got.String(), err)
	}
}

// TestSnapshotBucketIsBounded: the bucket has room for two snapshots and forgets
// them after a day.
func TestSnapshotBucketIsBounded(t *testing.T) {
	url := StartDurableServer(t)
	n := ConnectDurable(t, url)
	if err := n.SaveSnapshot(t.Context(), 0, func(w io.Writer) error { _, err := w.Write([]byte("x")); return err }); err != nil {
		t.Fatal(err)
	}
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), "OBJ_"+kvevent.SnapshotBucket("default"))
	if err != nil {
		t.Fatal(err)
	}
	if c := s.CachedInfo().Config; c.MaxBytes != bucketBytes(firstSnapshotRoom) || c.MaxAge != snapshotMaxAge {
		t.Errorf("bucket %+v", c)
	}
	for _, tc := range []struct {
		size uint64
		want int64
	}{{firstSnapshotRoom + 1, bucketBytes(2 * firstSnapshotRoom)}, {1, bucketBytes(2 * firstSnapshotRoom)}} { // it never shrinks
		if err := n.SaveSnapshot(t.Context(), tc.size, func(w io.Writer) error { _, err := w.Write([]byte("y")); return err }); err != nil {
			t.Fatal(err)
		}
		info, err := s.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if c := info.Config; c.MaxBytes != tc.want || c.MaxAge != snapshotMaxAge {
			t.Errorf("bucket %+v after a snapshot of %d bytes, want %d", c, tc.size, tc.want)
		}
	}
	if got := snapshotRoom(math.MaxUint64); got != maxSnapshotRoom {
		t.Errorf("room for %d bytes", got)
	}
	w := &limitedWriter{w: io.Discard, left: 3, room: 3}
	if _, err := w.Write([]byte("1234")); err == nil {
		t.Error("more was written than there is room for")
	}
}

// save saves bytes as the snapshot, which the caller says to be of a size.
func (n *Source) save(t *testing.T, size uint64, b []byte) error {
	t.Helper()
	return n.SaveSnapshot(t.Context(), size, func(w io.Writer) error { _, err := w.Write(b); return err })
}

// TestSnapshotsOnASmallServer: the bucket gets the room that there is, and a snapshot that fits is saved, however large
// it was said to be. One that does not fit is refused, and the former stays.
func TestSnapshotsOnASmallServer(t *testing.T) {
	dir := t.TempDir()
	s := sourcetest.StartServer(t, func(o *server.Options) { o.JetStream, o.StoreDir, o.JetStreamMaxStore = true, dir, 8<<20 })
	n := ConnectDurable(t, s.ClientURL())
	for i, size := range []uint64{0, math.MaxUint64} { // makes the bucket, and would have it grow
		if err := n.save(t, size, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		if got := n.Stats().SnapshotBucketLimited; got != uint64(i+1) {
			t.Errorf("%d saves had less room than they asked for, want %d", got, i+1)
		}
	}
	if err := n.save(t, 1, []byte("good")); err != nil {
		t.Fatal(err)
	}
	if err := n.save(t, math.MaxUint64, make([]byte, 7<<20)); err == nil {
		t.Error("a snapshot was saved for which there is no room")
	}
	var got bytes.Buffer
	if err := n.LoadSnapshot(t.Context(), func(r io.Reader) error { _, err := got.ReadFrom(r); return err }); err != nil || got.String() != "good" {
		t.Errorf("%q, %v", got.String(), err)
	}
}

// TestALoadBeginsAgainWithANewerSnapshot, when another router saves one meanwhile, and gives up after a few.
func TestALoadBeginsAgainWithANewerSnapshot(t *testing.T) {
	url := StartDurableServer(t)
	n, other := ConnectDurable(t, url), ConnectDurable(t, url)
	for _, tc := range []struct{ replaced, calls int }{{1, 2}, {maxReplacements, maxReplacements + 1}, {maxReplacements + 1, maxReplacements + 1}} {
		before := n.Stats().SnapshotReplacements
		if err := other.save(t, 0, make([]byte, 4<<20)); err != nil {
			t.Fatal(err)
		}
		calls := 0
		var got []byte
		err := n.LoadSnapshot(t.Context(), func(r io.Reader) (err error) {
			calls++
			one := make([]byte, 1)
			if calls > tc.replaced {
				got, err = io.ReadAll(r)
				return err
			}
			if _, err := r.Read(one); err != nil {
				return err
			}
			if err := other.save(t, 0, bytes.Repeat([]byte{byte(calls)}, 4<<20)); err != nil {
				t.Error(err)
			}
			waittest.Until(t, "the load ends, whose rest never comes", func() bool {
				_, err = r.Read(one)
				return err != nil
			})
			return err
		})
		if calls != tc.calls || int(n.Stats().SnapshotReplacements-before) != calls-1 {
			t.Errorf("replaced %d times: read %d times, %d counted", tc.replaced, calls, n.Stats().SnapshotReplacements-before)
		}
		if tc.replaced > maxReplacements {
			if !errors.Is(err, errReplaced) {
				t.Errorf("replaced %d times: %v", tc.replaced, err)
			}
		} else if err != nil || !bytes.Equal(got, bytes.Repeat([]byte{byte(tc.replaced)}, 4<<20)) {
			t.Errorf("replaced %d times: %d bytes, %v; want the last snapshot", tc.replaced, len(got), err)
		}
	}
}
