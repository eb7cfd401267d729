package remote

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/blockyard-ai/blockyard/internal/kv"
	"github.com/blockyard-ai/blockyard/router/feed"
	"github.com/blockyard-ai/blockyard/router/index"
	"github.com/blockyard-ai/blockyard/router/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bus is a Bus in memory with one member of a group.
type bus struct {
	answer func(request []byte) ([]byte, error)
	asked  int
	// waited is how long a question has waited for the server.
	waited time.Duration
}

var errNobody = errors.New("nobody answers")

func (b *bus) Cluster() string { return "c" }

func (b *bus) Request(_ context.Context, _ string, request []byte) ([]byte, error) {
	b.asked++
	if b.answer == nil {
		return nil, errNobody
	}
	return b.answer(request)
}

func (b *bus) AnswerGroup(_, _ string, _ int, answer func(request []byte, arrived time.Time) ([]byte, error)) (stop func(), dropped func() uint64, err error) {
	b.answer = func(request []byte) ([]byte, error) {
		out, err := answer(request, time.Now().Add(-b.waited))
		if err != nil {
			return nil, source.AnswerError(err.Error()) // as of a router at the other end of a connection
		}
		return out, nil
	}
	return func() { b.answer = nil }, func() uint64 { return 0 }, nil
}

// local returns the index of the workers 1 to n, without blocks.
func local(t *testing.T, n int) *index.Index {
	t.Helper()
	x, err := index.New(index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for w := range n {
		if err := x.SetMember(kv.Worker{ID: kv.WorkerID(w + 1)}, 0, true); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

// TestHitsAreThoseOfTheServer: each member gets the hits of its worker, and a worker that only the server
// knows is counted.
func TestHitsAreThoseOfTheServer(t *testing.T) {
	b := &bus{}
	var asked Query
	there := local(t, 5)
	s, err := Serve(b, func(dst *index.Matches, q *Query) (feed.Quality, bool) {
		asked = *q
		if q.Model != "m" {
			return feed.Fallback, false
		}
		dst.Members = there.Members()
		dst.Hits = append(dst.Hits[:0], index.Hit{Member: 1, Hits: index.Hits{2, 1}}, index.Hit{Member: 4, Hits: index.Hits{3}})
		return feed.Degraded, true
	})
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(Options{Bus: b})
	x := c.Index("m", 16, local(t, 3))
	m := index.Matches{MaxTokens: 47, PrimaryGroup: true}
	locals := []kv.LocalHash{5, 6, 7}
	x.Match(&m, locals, index.Union)
	want := []index.Hit{{Member: 1, Hits: index.Hits{2, 1}}}
	if diff := gocmp.Diff(want, m.Hits); diff != "" || len(m.Members.List) != 3 || m.Quality != string(feed.Degraded) {
		t.Errorf("quality %s, %d members, hits (-want +got)\n%s", m.Quality, len(m.Members.List), diff)
	}
	if diff := gocmp.Diff(Query{"m", 16, index.Union, 47, true, locals}, asked); diff != "" {
		t.Errorf("question (-want +got)\n%s", diff)
	}
	x.Match(&m, nil, index.Union)
	if len(m.Hits) != 0 || b.asked != 1 {
		t.Errorf("%d hits of an empty prompt, asked %d times", len(m.Hits), b.asked)
	}
	c.Index("another", 16, local(t, 1)).Match(&m, locals, index.Union)
	if s.Stats() != (ServerStats{Queries: 1, Refused: 1}) || c.Stats() != (ClientStats{Queries: 2, Failures: 1, Unknown: 1}) {
		t.Errorf("served %+v, asked %+v", s.Stats(), c.Stats())
	}
}

// TestWithoutAnAnswerThereAreNoHits: the quality says so, and failures in a row are not asked again at once.
func TestWithoutAnAnswerThereAreNoHits(t *testing.T) {
	b := &bus{}
	c := NewClient(Options{Bus: b})
	x := c.Index("m", 16, local(t, 1))
	for range 7 {
		m := index.Matches{Hits: []index.Hit{{Member: 0, Hits: index.Hits{1}}}}
		x.Match(&m, []kv.LocalHash{5}, index.Union)
		if len(m.Hits) != 0 || len(m.Members.List) != 1 || m.Quality != string(feed.Fallback) {
			t.Errorf("hits %v, %d members, quality %s", m.Hits, len(m.Members.List), m.Quality)
		}
	}
	if got, want := c.Stats(), (ClientStats{Queries: 5, Failures: 5, Skipped: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestLongPromptsAreAskedInPart: a question stays below what a NATS server takes.
func TestLongPromptsAreAskedInPart(t *testing.T) {
	b := &bus{answer: func(request []byte) ([]byte, error) {
		q, err := decodeQuery(request)
		if err != nil || len(q.Locals) != maxBlocks {
			t.Errorf("%d blocks, %v", len(q.Locals), err)
		}
		return appendAnswer(nil, &Answer{Quality: feed.Exact}), err
	}}
	c := NewClient(Options{Bus: b})
	c.Index("m", 16, local(t, 1)).Match(&index.Matches{}, make([]kv.LocalHash, maxBlocks+1), index.Union)
	if got, want := c.Stats(), (ClientStats{Queries: 1, Truncated: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// serving returns a client of a server that answers questions about model "known" with a hit of worker 1.
func serving(t *testing.T, b *bus, workers int) (*Client, *Server) {
	t.Helper()
	there := local(t, workers)
	s, err := Serve(b, func(dst *index.Matches, q *Query) (feed.Quality, bool) {
		dst.Members = there.Members()
		dst.Hits = append(dst.Hits[:0], index.Hit{Member: 0, Hits: index.Hits{1}})
		return feed.Exact, q.Model == "known"
	})
	if err != nil {
		t.Fatal(err)
	}
	return NewClient(Options{Bus: b}), s
}

// TestQualityIsThatOfTheMatch: another request's answer does not change it.
func TestQualityIsThatOfTheMatch(t *testing.T) {
	b := &bus{}
	c, s := serving(t, b, 1)
	x := c.Index("known", 16, local(t, 1))
	var failed, answered index.Matches
	s.Stop()
	x.Match(&failed, []kv.LocalHash{5}, index.Union)
	serving(t, b, 1)
	x.Match(&answered, []kv.LocalHash{6}, index.Union)
	if failed.Quality != string(feed.Fallback) || answered.Quality != string(feed.Exact) || x.Quality() != feed.Exact {
		t.Errorf("qualities %s and %s, then %s", failed.Quality, answered.Quality, x.Quality())
	}
}

// TestAnAnswerThatLacksAWorkerIsNotExact: a router that has just started may not know all workers.
func TestAnAnswerThatLacksAWorkerIsNotExact(t *testing.T) {
	for workers, want := range map[int]feed.Quality{1: feed.Degraded, 2: feed.Exact, 3: feed.Degraded} {
		c, _ := serving(t, &bus{}, workers)
		var m index.Matches
		c.Index("known", 16, local(t, 2)).Match(&m, []kv.LocalHash{5}, index.Union)
		if m.Quality != string(want) || len(m.Hits) != 1 {
			t.Errorf("a server with %d workers of 2: %s, hits %v, want %s", workers, m.Quality, m.Hits, want)
		}
	}
}

// TestARefusalOfOneModelPausesNoOther: the server is alive.
func TestARefusalOfOneModelPausesNoOther(t *testing.T) {
	c, s := serving(t, &bus{}, 1)
	var m index.Matches
	for range 7 {
		c.Index("unknown", 16, local(t, 1)).Match(&m, []kv.LocalHash{5}, index.Union)
	}
	c.Index("known", 16, local(t, 1)).Match(&m, []kv.LocalHash{5}, index.Union)
	if got, want := c.Stats(), (ClientStats{Queries: 8, Failures: 7}); got != want || m.Quality != string(feed.Exact) || s.Stats().Refused != 7 {
		t.Errorf("%+v, want %+v; quality %s, served %+v", got, want, m.Quality, s.Stats())
	}
}

// TestABadAnswerIsAFailure: of the connection or of the program there, so that the next ones are not asked
// at once.
func TestABadAnswerIsAFailure(t *testing.T) {
	b := &bus{answer: func([]byte) ([]byte, error) { return []byte{0xc1}, nil }}
	c := NewClient(Options{Bus: b})
	for range 6 {
		c.Index("m", 16, local(t, 1)).Match(&index.Matches{}, []kv.LocalHash{5}, index.Union)
	}
	if got, want := c.Stats(), (ClientStats{Queries: 5, Failures: 5, Skipped: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestAQuestionThatWaitedTooLongIsNotLookedUp: the router that asked has given up.
func TestAQuestionThatWaitedTooLongIsNotLookedUp(t *testing.T) {
	b := &bus{waited: 2 * maxWait}
	c, s := serving(t, b, 1)
	x := c.Index("known", 16, local(t, 1))
	var m index.Matches
	x.Match(&m, []kv.LocalHash{5}, index.Union)
	if got, want := s.Stats(), (ServerStats{Stale: 1}); got != want || m.Quality != string(feed.Fallback) {
		t.Errorf("%+v, want %+v; quality %s", got, want, m.Quality)
	}
}

func TestBadMessagesAreRefused(t *testing.T) {
	worker := func(id uint64, hits ...uint32) Held {
		h := Held{Worker: kv.Worker{ID: kv.WorkerID(id)}}
		copy(h.Hits[:], hits)
		return h
	}
	for want, a := range map[string]Answer{
		"quality": {Quality: "good"}, "ascending": {Quality: feed.Exact, Workers: []Held{worker(2, 1), worker(2, 1)}},
		"0..2": {Quality: feed.Exact, Workers: []Held{worker(1, 1, 3)}}, "16385 workers": {Quality: feed.Exact, Workers: make([]Held, maxWorkers+1)},
	} {
		if _, err := decodeAnswer(appendAnswer(nil, &a), 3); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := decodeQuery(appendQuery(nil, &Query{Locals: make([]kv.LocalHash, maxBlocks+1)})); err == nil || !strings.Contains(err.Error(), "bytes of hashes") {
		t.Errorf("a question of too many blocks: %v", err)
	}
	for _, big := range []error{second(decodeQuery(make([]byte, maxBytes+1))), second(decodeAnswer(make([]byte, maxBytes+1), 1))} {
		if big == nil || !strings.Contains(big.Error(), "are more than 1048576") {
			t.Errorf("%v", big)
		}
	}
	// Bytes cut off or changed anywhere end in an error or in a message, never in a panic.
	rng := rand.New(rand.NewPCG(1, 2))
	for _, b := range [][]byte{
		appendQuery(nil, &Query{Model: "m", BlockSize: 16, Locals: []kv.LocalHash{1, 2}}),
		appendAnswer(nil, &Answer{Quality: feed.Exact, Workers: []Held{worker(1, 1), worker(2, 0, 2)}}),
	} {
		for range 5000 {
			bad := append([]byte{}, b[:rng.IntN(len(b)+1)]...)
			if len(bad) > 0 {
				bad[rng.IntN(len(bad))] = byte(rng.Uint32())
			}
			_, _ = decodeQuery(bad)
			_, _ = decodeAnswer(bad, 2)
		}
	}
}

func second[T any](_ T, err error) error { return err }
