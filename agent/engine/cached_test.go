package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/blockyard-ai/blockyard/agent/agenttest"
	"github.com/blockyard-ai/blockyard/agent/events"
	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/internal/proto"
)

// listing connects an engine that lists its cached hashes.
func (a *testServer) listing(t *testing.T, list func(context.Context) ([]kv.EngineHash, error)) *proto.SchedulerClient {
	t.Helper()
	c, err := proto.DialScheduler(t.Context(), proto.ClientOptions{Socket: string(a.Socket), Hello: agenttest.Hello(1), Cached: list})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestCachedHashesComeFromTheEngine(t *testing.T) {
	a := startServer(t, nil)
	want := make([]kv.EngineHash, 3*proto.MaxListedPerFrame+1)
	for i := range want {
		want[i] = kv.EngineHash(i) << 32
	}
	calls := 0
	a.listing(t, func(context.Context) ([]kv.EngineHash, error) {
		if calls++; calls == 2 {
			return nil, errors.New("no pool yet")
		}
		return want, nil
	})
	s := a.session(1)
	for n, wantErr := range []error{nil, errUnavailable, nil} {
		got, err := s.cachedHashes(t.Context())
		if !errors.Is(err, wantErr) || (err == nil && !slices.Equal(got, want)) {
			t.Errorf("list %d: %d hashes, error %v: want error %v", n+1, len(got), err, wantErr)
		}
	}
}

// Connectors of an earlier minor version say nothing of lists and are never asked.
func TestAConnectorThatCannotListIsNotAsked(t *testing.T) {
	a := startServer(t, nil)
	c := a.RawScheduler(t, 1)
	if _, err := a.session(1).cachedHashes(t.Context()); !errors.Is(err, errCannotList) {
		t.Errorf("got error %v, want %v", err, errCannotList)
	}
	agenttest.Send(t, c, proto.TypeBye, 2, &proto.Bye{})
	if f := agenttest.Receive(t, c); f.Type != proto.TypeOK {
		t.Errorf("%s came before the answer to BYE", f.Type)
	}
}

// A list that its engine does not send ends with the session.
func TestAListEndsWithItsSession(t *testing.T) {
	a := startServer(t, nil)
	asked := make(chan struct{})
	c := a.listing(t, func(ctx context.Context) ([]kv.EngineHash, error) {
		close(asked)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	s := a.session(1)
	result := make(chan error, 1)
	go func() {
		_, err := s.cachedHashes(context.Background())
		result <- err
	}()
	<-asked
	c.Close()
	if err := <-result; !errors.Is(err, errEnded) {
		t.Errorf("got error %v, want %v", err, errEnded)
	}
}

// Parts of a list that is not waited for are dropped and counted, parts of one that
// was never asked for refused, and the session goes on.
func TestPartsOfAnotherListAreDroppedOrRefused(t *testing.T) {
	a := startServer(t, nil)
	c := a.Raw(t)
	h := agenttest.Hello(1)
	h.Major, h.Role, h.ListsCached = proto.VersionMajor, string(proto.RoleScheduler), true
	agenttest.Send(t, c, proto.TypeHello, 1, &h)
	agenttest.Receive(t, c)
	agenttest.Send(t, c, proto.TypeCached, 0, &proto.Cached{List: 1, Final: true})
	if e := agenttest.WantError(t, c, 0, proto.CodeState); !strings.Contains(e.Text, "CACHED list: 1 was not asked for") {
		t.Errorf("the text is %q", e.Text)
	}
	s := a.session(1)
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := s.cachedHashes(ctx)
		first <- err
	}()
	if f := agenttest.Receive(t, c); f.Type != proto.TypeListCached || f.Corr != 0 {
		t.Fatalf("got %s with correlation %d", f.Type, f.Corr)
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v", err)
	}
	second := make(chan []kv.EngineHash, 1)
	go func() {
		got, _ := s.cachedHashes(t.Context())
		second <- got
	}()
	agenttest.Receive(t, c)
	agenttest.Send(t, c, proto.TypeCached, 0, &proto.Cached{List: 1, Hashes: proto.AppendHashes(nil, []kv.EngineHash{8}), Final: true})
	agenttest.Send(t, c, proto.TypeCached, 0, &proto.Cached{List: 2, Hashes: proto.AppendHashes(nil, []kv.EngineHash{9}), Final: true})
	if got := <-second; !slices.Equal(got, []kv.EngineHash{9}) {
		t.Errorf("got %v, want 9 alone", got)
	}
	if n := a.sessions.listsDropped.Load(); n != 1 {
		t.Errorf("%d parts were dropped, want 1", n)
	}
}

// An engine that does not answer, or has no end of hashes, costs a list and nothing
// else: the next one may succeed.
func TestListsAreBoundedInTimeAndSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan uint64, 1)
		l := newCachedLists(func(list uint64) error { asked <- list; return nil }, func() {})
		l.open()
		start := time.Now()
		if _, err := l.get(t.Context()); err == nil || !strings.Contains(err.Error(), "not listed within 5s") || time.Since(start) != listTimeout {
			t.Errorf("got error %v after %s, want one after %s", err, time.Since(start), listTimeout)
		}
		<-asked
		result := make(chan error, 1)
		go func() {
			_, err := l.get(t.Context())
			result <- err
		}()
		list := <-asked
		part := proto.Cached{List: list, Hashes: make([]byte, 8*proto.MaxListedPerFrame)}
		for n := 0; n <= proto.MaxListed; n += proto.MaxListedPerFrame {
			agenttest.NoError(t, l.take(&part))
		}
		if err := <-result; err == nil || !strings.Contains(err.Error(), "more than 16777216") {
			t.Errorf("got error %v", err)
		}
		go func() { _ = l.take(&proto.Cached{List: <-asked, Final: true}) }()
		if got, err := l.get(t.Context()); err != nil || len(got) != 0 {
			t.Errorf("then got %d hashes, error %v", len(got), err)
		}
	})
}

// Two that ask get a list each, one after the other: a list tells of its own time.
func TestListsAreMadeOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *cachedLists
		var going, most int
		l = newCachedLists(func(list uint64) error {
			going++
			most = max(most, going)
			go func() {
				time.Sleep(time.Second)
				going--
				_ = l.take(&proto.Cached{List: list, Final: true})
			}()
			return nil
		}, func() {})
		results := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := l.get(t.Context())
				results <- err
			}()
		}
		synctest.Wait()
		if l.lastList != 0 {
			t.Error("a list was asked for before WELCOME")
		}
		l.open()
		for range 3 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if most != 1 || l.lastList != 3 {
			t.Errorf("%d lists at a time, %d in all: want 1 and 3", most, l.lastList)
		}
	})
}

func TestGaugesAreWhatTheSchedulerSaidLast(t *testing.T) {
	a := startServer(t, nil)
	c := a.Scheduler(t, 1)
	s := a.session(1)
	if g, ok := s.gauges(); ok {
		t.Errorf("before STATS there is %+v", g)
	}
	for _, m := range []proto.Stats{
		{Lookups: 1},
		{Lookups: 1, DeviceBlocksTotal: 100, DeviceBlocksUsed: 60, RunningRequests: 3, WaitingRequests: 2},
		{Lookups: 1, DeviceBlocksTotal: 100, DeviceBlocksUsed: 10}, // too soon to count, and a gauge goes back
	} {
		agenttest.NoError(t, c.Report(m))
	}
	want := events.EngineGauges{DeviceBlocks: 100, DeviceUsed: 10}
	agenttest.Eventually(t, "the last gauges arrive", func() bool {
		g, ok := s.gauges()
		return ok && g == want
	})
	if list := a.Stats().Connectors; len(list) != 1 || list[0].Lookups != 1 || list[0].DeviceBlocksTotal != 0 {
		t.Errorf("the counters are %+v: want gauges not summed up", list)
	}
}
