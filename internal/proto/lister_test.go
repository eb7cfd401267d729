package proto

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/blockyard-ai/blockyard/internal/kv"
)

// listing is DialScheduler with a list.
func listing(list func(context.Context) ([]kv.EngineHash, error)) func(context.Context, ClientOptions) (*SchedulerClient, error) {
	return func(ctx context.Context, o ClientOptions) (*SchedulerClient, error) {
		o.Cached = list
		return DialScheduler(ctx, o)
	}
}

// wantList asks for a list and puts its parts together.
func (a fakeAgent) wantList(list uint64) (hashes []kv.EngineHash, frames int, unavailable bool) {
	a.send(TypeListCached, 0, &ListCached{List: list}, nil)
	for {
		var m Cached
		if h := a.want(TypeCached, &m); h.Corr != 0 || m.List != list {
			a.t.Errorf("CACHED has correlation %d and list %d: want 0 and %d", h.Corr, m.List, list)
			return hashes, frames, false
		}
		frames++
		hashes, _ = ParseHashes(hashes, m.Hashes) // Decode has checked them
		if m.Final {
			return hashes, frames, m.Unavailable
		}
	}
}

func TestCachedHashesAreListedInPieces(t *testing.T) {
	for _, n := range []int{0, 1, MaxListedPerFrame, MaxListedPerFrame + 1, 3 * MaxListedPerFrame} {
		want := make([]kv.EngineHash, n)
		for i := range want {
			want[i] = kv.EngineHash(i) << 40
		}
		asked := make(chan struct{})
		c := connect(t, listing(func(context.Context) ([]kv.EngineHash, error) { return want, nil }), func(a fakeAgent) {
			got, frames, unavailable := a.wantList(7)
			if !slices.Equal(got, want) || unavailable || frames != max(1, (n+MaxListedPerFrame-1)/MaxListedPerFrame) {
				t.Errorf("%d hashes came as %d in %d frames, unavailable %v", n, len(got), frames, unavailable)
			}
			close(asked)
			a.untilClosed()
		})
		<-asked
		c.Close()
	}
}

func TestAnEngineThatCannotListSaysSoAndMayLater(t *testing.T) {
	calls := 0
	list := func(context.Context) ([]kv.EngineHash, error) {
		if calls++; calls == 1 {
			return nil, errors.New("no pool yet")
		}
		return []kv.EngineHash{5}, nil
	}
	asked := make(chan struct{})
	c := connect(t, listing(list), func(a fakeAgent) {
		if got, _, unavailable := a.wantList(1); !unavailable || len(got) != 0 {
			t.Errorf("got %v, unavailable %v", got, unavailable)
		}
		if got, _, unavailable := a.wantList(2); unavailable || !slices.Equal(got, []kv.EngineHash{5}) {
			t.Errorf("then got %v, unavailable %v", got, unavailable)
		}
		close(asked)
		a.untilClosed()
	})
	defer c.Close()
	<-asked
}

// A list that takes long ends with the connection, and Close waits for it.
func TestAListEndsWithItsConnection(t *testing.T) {
	var ended bool
	begun := make(chan struct{})
	list := func(ctx context.Context) ([]kv.EngineHash, error) {
		close(begun)
		<-ctx.Done()
		ended = true
		return nil, ctx.Err()
	}
	c := connect(t, listing(list), func(a fakeAgent) {
		a.send(TypeListCached, 0, &ListCached{List: 1}, nil)
		<-begun
	})
	<-begun
	c.Close()
	if !ended {
		t.Error("Close returned while a list was made")
	}
}
