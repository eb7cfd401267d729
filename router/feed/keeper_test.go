package feed

import (
	"context"
	"io"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/source/sourcetest"
)

// slowStore has a snapshot of which a piece comes after each pause. From piece stall on nothing comes. With
// polls, a read without a piece returns no bytes each five seconds.
type slowStore struct {
	data  []byte
	pause time.Duration
	stall int
	polls bool
}

func (*slowStore) SaveSnapshot(context.Context, uint64, func(io.Writer) error) error { return nil }

func (*slowStore) ForgetSnapshot(context.Context) error { return nil }

func (s *slowStore) LoadSnapshot(ctx context.Context, read func(io.Reader) error) error {
	pieces := 0
	return read(readerFunc(func(b []byte) (int, error) {
		pause := s.pause
		if pieces++; pieces > s.stall {
			pause = time.Hour
		}
		if s.polls && pause == time.Hour {
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
			return 0, ctx.Err()
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(pause):
		}
		if len(s.data) == 0 {
			return 0, io.EOF
		}
		n := copy(b[:min(len(b), 16)], s.data)
		s.data = s.data[n:]
		return n, nil
	}))
}

type readerFunc func(b []byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// TestALargeSnapshotMayTakeLong as long as bytes come. A store that falls silent delays the start by 15
// seconds.
func TestALargeSnapshotMayTakeLong(t *testing.T) {
	data := encodeSnapshot(t, 9, testImages())
	for _, tc := range []struct {
		stall    int
		polls    bool
		position uint64
	}{{1 << 30, false, 9}, {3, false, 0}, {3, true, 0}} {
		synctest.Test(t, func(t *testing.T) {
			k := NewKeeper(KeeperOptions{Store: &slowStore{data: data, pause: 10 * time.Second, stall: tc.stall, polls: tc.polls}, Log: zap.NewNop()}, freshFeeds(t))
			began := time.Now()
			position := k.Start(t.Context())
			took := time.Since(began)
			if position != tc.position || tc.position > 0 && took < time.Hour || tc.position == 0 && took != 45*time.Second {
				t.Errorf("position %d after %v", position, took)
			}
		})
	}
}

// busyStore saves a snapshot in a time.
type busyStore struct {
	slowStore
	takes time.Duration
}

func (s *busyStore) SaveSnapshot(ctx context.Context, _ uint64, write func(io.Writer) error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.takes):
		return write(io.Discard)
	}
}

// TestTheLastSaveMayTakeLongerForALargerIndex: a router that stops waits longer for a larger snapshot, and not without
// bound. A save that is cut is counted and logged with the snapshot's size.
func TestTheLastSaveMayTakeLongerForALargerIndex(t *testing.T) {
	const blocks = 1000
	for _, tc := range []struct{ takes, past time.Duration }{
		{5*time.Second + blocks*8*time.Second/(32<<20), 0}, {time.Hour, 5 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			logged, logs := observer.New(zap.InfoLevel)
			s := freshFeeds(t)
			k := NewKeeper(KeeperOptions{Store: &busyStore{takes: tc.takes}, Threshold: 1 << 30, Log: zap.New(logged)}, s)
			p := sourcetest.NewPublisher(11, sourcetest.WorkerOwner(1), 0)
			s.Frame(p.Announce(), time.Now())
			for i := range uint32(blocks) {
				s.Frame(p.Store(kv.TierDevice, sourcetest.Tokens(i)), time.Now())
			}
			began := time.Now()
			k.Finish()
			took, got := time.Since(began), k.Stats()
			cut := logs.FilterMessage("snapshot is not saved").All()
			if tc.past == 0 {
				if took != tc.takes || got.Saved != 1 || got.Failed != 0 || len(cut) != 0 {
					t.Errorf("%v of %v, %+v, %v: want a snapshot", took, tc.takes, got, cut)
				}
				return
			}
			if took <= tc.past || took > tc.past+time.Millisecond || got.Saved != 0 || got.Failed != 1 || len(cut) != 1 {
				t.Fatalf("after %v %+v, %v: want a save that was cut", took, got, cut)
			}
			if fields := cut[0].ContextMap(); fields["most_bytes"] != s.snapshotSize() || fields["limit"] != took {
				t.Errorf("the warning says %v", fields)
			}
		})
	}
}

func TestTheLastSaveIsBounded(t *testing.T) {
	for size, want := range map[uint64]time.Duration{
		0: 5 * time.Second, 32 << 20: 6 * time.Second, 1 << 30: 37 * time.Second, 6 << 30: 3 * time.Minute, math.MaxUint64: 3 * time.Minute,
	} {
		if got := lastSaveTimeout(size); got != want {
			t.Errorf("%d bytes: %v, want %v", size, got, want)
		}
	}
}
