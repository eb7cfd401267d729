package feed

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
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
